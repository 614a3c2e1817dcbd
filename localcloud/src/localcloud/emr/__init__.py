"""EMR clusters of the local cloud: CloudFormation uses the functions here, everybody else the API."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from localcloud.context import Context
from localcloud.ec2 import fleet
from localcloud.emr import api, reports
from localcloud.emr.api import PATCHED
from localcloud.emr.launching import DOOR_PATH
from localcloud.emr.records import Cluster
from localcloud.emr.service import Service

__all__ = ["DOOR_PATH", "PATCHED", "answer", "clusters", "create", "delete", "install"]

_service: Service | None = None


def install(context: Context) -> None:
    """Answer EMR's API from clusters of nodes. Call ec2.install() first."""
    global _service
    _service = Service(context, fleet.current())
    api.install(_service)


def create(region: str, wanted: Mapping[str, Any], settled: Callable[[str | None], None]) -> Cluster:
    """Create a cluster and return at once; `settled(None)` is called when it is ready, or `settled(reason)`.

    Raises ServiceException with AWS's message for what AWS refuses.
    """
    return api.run_job_flow(_running(), region, wanted, settled)


def clusters() -> list[Cluster]:
    """Return all clusters, those that ended included."""
    return list(_running().clusters.values())


def delete(cluster_id: str, gone: Callable[[str | None], None]) -> bool:
    """Terminate a cluster; return whether that takes time, and then call `gone(None)` when its nodes have ended."""
    return _running().delete(cluster_id, gone)


def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
    """Answer a node's controller."""
    return reports.answer(_running(), environ, start_response)


def _running() -> Service:
    assert _service is not None, "call emr.install() first"
    return _service
