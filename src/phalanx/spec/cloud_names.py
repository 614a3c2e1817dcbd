"""The names of clouds: each says where the machines are, here or at AWS, and which service makes them (`makers.py`)."""

from __future__ import annotations

CLOUDS = ("local", "aws", "local-emr", "emr")
_HERE = ("local", "local-emr")


def is_local(cloud: str) -> bool:
    """Whether the cloud is the stand-in for AWS on this machine."""
    return cloud in _HERE
