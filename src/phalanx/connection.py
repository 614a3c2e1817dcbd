"""The clouds by name. A cloud's module, and botocore with it, is imported only when it is needed."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from phalanx.errors import SpecError

if TYPE_CHECKING:
    from phalanx.aws.protocol import Cloud
    from phalanx.cluster.cluster_record import Cluster
    from phalanx.errors import ClusterError
    from phalanx.node.roster import Roster

MODULES = {
    "aws": "phalanx.aws.aws",
    "local": "phalanx.local.local",
    "emr": "phalanx.aws.aws",
    "local-emr": "phalanx.local.local",
}


def connect(name: str, region: str) -> Cloud:
    """Return the cloud of this name. Connects to nothing yet and starts nothing."""
    return importlib.import_module(_module(name)).connect(region, name)


def begin(name: str) -> None:
    """Start what the cloud needs on this machine (the local cloud's process, or nothing) without waiting for it."""
    if _module(name) == MODULES["local"]:
        importlib.import_module("phalanx.local.endpoint").begin()


class ControlPlane:
    """What a cluster's record requests of its cloud. The modules are imported at the first request."""

    def roster(self, cluster: Cluster) -> Roster:
        return importlib.import_module("phalanx.cluster.rosters").read(cluster)

    def settle_by(self, cluster: Cluster, command: str) -> None:
        importlib.import_module("phalanx.cluster.rosters").settle_by(cluster, command)

    def repair(self, cluster: Cluster, error: ClusterError) -> bool:
        return importlib.import_module("phalanx.cluster.diagnosis").repair(cluster, error)


def _module(name: str) -> str:
    if name not in MODULES:
        raise SpecError(f"there is no cloud '{name}'", f"Choose one of: {', '.join(MODULES)}.")
    return MODULES[name]
