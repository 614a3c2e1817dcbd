"""The two scripts for EMR clusters that phalanx did not make, as texts: they work without phalanx."""

from __future__ import annotations

from importlib import resources

NAMES = ("emr_efs_bootstrap.sh", "metadata_setup.sh")


def texts() -> dict[str, str]:
    """Return name → text."""
    here = resources.files(__name__)
    return {name: (here / name).read_text(encoding="utf-8") for name in NAMES}
