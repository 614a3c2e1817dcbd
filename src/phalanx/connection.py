"""Connects a cluster to the cloud of its name. botocore is imported at the first request."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING

from phalanx.cluster import diagnosis
from phalanx.cluster.cluster_record import Control
from phalanx.errors import SpecError
from phalanx.local import endpoint
from phalanx.spec.cloud_names import CLOUDS, is_local

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws
    from phalanx.cluster.cluster_record import Cluster
    from phalanx.emr.resizing import CoreGroup


def connect(name: str, region: str) -> Aws:
    """Return the cloud of this name. Connects to nothing yet and starts nothing."""
    _require_known(name)
    from phalanx import clouds  # here: it loads botocore

    return clouds.of(name, region)


def begin(name: str) -> None:
    """Start what the cloud needs on this machine (the local cloud's process, or nothing) without waiting for it."""
    _require_known(name)
    if is_local(name):
        endpoint.begin()


def attached(cluster: Cluster) -> Cluster:
    """Return the cluster with its cloud's API, which provides the roster and helps when ssh fails."""
    # Each connection has its own session and clients, which take 20 ms.
    once = functools.cache(lambda name, region: connect(name, region))
    return replace(cluster, control=Control(lambda one: once(one.cloud, one.region), diagnosis.repair, _core_group))


def _core_group(cluster: Cluster) -> CoreGroup:
    from phalanx.emr.resizing import CoreGroup  # here: it loads botocore and troposphere

    return CoreGroup(cluster.aws(), cluster)


def _require_known(name: str) -> None:
    if name not in CLOUDS:
        raise SpecError(f"there is no cloud '{name}'", f"Choose one of: {', '.join(CLOUDS)}.", code="no-cloud")
