"""The names of clouds: each says where the machines are, here or at AWS, and which service makes them."""

from __future__ import annotations

CLOUDS = ("local", "aws", "local-emr", "emr")
_HERE = ("local", "local-emr")
_EMR = ("emr", "local-emr")


def is_local(cloud: str) -> bool:
    """Whether the cloud is the stand-in for AWS on this machine."""
    return cloud in _HERE


def is_emr(cloud: str) -> bool:
    """Whether Amazon EMR makes the machines, and not Auto Scaling."""
    return cloud in _EMR
