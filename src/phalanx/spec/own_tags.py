"""The tags that phalanx gives to what it makes. Those of a user may not begin like them (spec_groups)."""

from __future__ import annotations

CLUSTER_TAG = "phalanx:cluster"
"""Says which cluster a resource is of: `up` tags the stack, and CloudFormation its resources (aws-behaviour 1.25)."""
KEEP_TAG = "phalanx:keep-until"
"""Says until when `down_after` spares a cluster. It is on the head's group, whose tags no node may change."""
RECIPE_TAG, VERSION_TAG, BASE_TAG = "phalanx:recipe", "phalanx:version", "phalanx:base"
"""Tags of an image that was made from a recipe."""
