"""When ssh can't reach a cluster: find the real cause, and repair what this machine can repair."""

from __future__ import annotations

from phalanx import clouds
from phalanx.cluster.cluster_record import Cluster, write_authority
from phalanx.cluster.stack import read_authority
from phalanx.errors import ClusterError
from phalanx.ssh.remote import ConnectionLost, HostRefused


def mend(cluster: Cluster, error: ClusterError) -> bool:
    """True when another try may work. Raises a ClusterError that says more than ssh can, where the cluster is gone."""
    if cluster.cloud == "local":
        require_local_cloud(cluster)
    if isinstance(error, HostRefused):
        return _renew_trust(cluster)
    if isinstance(error, ConnectionLost):
        _require_stack(cluster)
    return False


def require_local_cloud(cluster: Cluster) -> None:
    """Raise ClusterError when the local cloud, and every cluster with it, is gone."""
    from phalanx.clouds import endpoint

    if endpoint.find() is None:
        raise ClusterError(
            f"cluster {cluster.name} is gone: the local cloud that it ran on is not running",
            "`phalanx up` makes it again; `phalanx down` forgets it.",
        )


def _renew_trust(cluster: Cluster) -> bool:
    """Read the authority again; True when it is another one, so that a second try may work."""
    cloud = clouds.get(cluster.cloud, cluster.region)
    return write_authority(cluster, read_authority(cloud, cluster.table))


def _require_stack(cluster: Cluster) -> None:
    state = clouds.get(cluster.cloud, cluster.region).describe_stack(cluster.stack_id)
    if state is None or state.status == "DELETE_COMPLETE":
        raise ClusterError(
            f"cluster {cluster.name} is gone: its stack no longer exists",
            "`phalanx up` makes it again; `phalanx down` forgets it.",
        )
