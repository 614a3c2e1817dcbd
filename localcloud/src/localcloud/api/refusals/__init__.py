"""What AWS refuses and moto accepts: a check for each, before moto changes its records, whichever API asks for it."""

from localcloud.api.refusals import access, groups, machines, networks, services, unknown  # noqa: F401 - register checks
from localcloud.api.refusals.before import install, patched

PATCHED = patched()

__all__ = ["PATCHED", "install"]
