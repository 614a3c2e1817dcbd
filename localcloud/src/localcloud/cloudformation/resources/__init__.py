"""The resource types that the local cloud supports, on top of moto's models."""

from __future__ import annotations

from localcloud.cloudformation.resources import (  # noqa: F401 - imported to register their types
    access,
    buckets,
    emr,
    events,
    fleet,
    functions,
    imagebuilder,
    instances,
    lustre,
    messaging,
    network,
    security,
    storage,
    updates,
    waiting,
)
from localcloud.cloudformation.resources.registry import TYPES, Made, Request, ResourceType

__all__ = ["TYPES", "Made", "Request", "ResourceType"]
