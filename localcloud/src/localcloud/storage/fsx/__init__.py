"""FSx for Lustre: a directory of this machine plays a file system, and a bind mount plays Lustre's client.

AWS takes minutes to make a file system and to link it to S3; here both are there at once.
"""

from __future__ import annotations

from localcloud.context import Context
from localcloud.storage.fsx import api
from localcloud.storage.fsx.api import PATCHED
from localcloud.storage.fsx.records import Interface, Lustre
from localcloud.storage.fsx.service import Service

__all__ = ["PATCHED", "Interface", "Lustre", "in_vpc", "install", "running"]

_service: Service | None = None


def install(context: Context) -> None:
    """Answer FSx's API from file systems here."""
    global _service
    if _service:
        _service.stop()
    _service = Service(context)
    context.at_stop(_service.stop)
    api.install(_service)


def running() -> Service:
    assert _service is not None, "call fsx.install() first"
    return _service


def in_vpc(vpc_id: str) -> list[Lustre]:
    """Return the file systems in a VPC."""
    return [one for one in list(_service.systems.values()) if one.vpc_id == vpc_id] if _service else []
