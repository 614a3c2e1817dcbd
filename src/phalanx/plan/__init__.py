"""A plan: what `up` would make of a spec, and how that is put in words."""
