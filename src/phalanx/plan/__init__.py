"""A plan: what `up` would create for a spec, and its description in words."""
