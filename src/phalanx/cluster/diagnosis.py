"""Find out why ssh can't reach a cluster, and repair what this machine can repair."""

from __future__ import annotations

from phalanx.aws import stacks
from phalanx.aws.model import Running, StackState
from phalanx.cluster import ssh_access, ssh_config
from phalanx.cluster.cluster_record import Cluster
from phalanx.cluster.stack import read_authority
from phalanx.errors import ClusterError, ClusterGone
from phalanx.ssh.remote import ConnectionLost, HostRefused, Silent

_MAKE_OR_FORGET = "`phalanx up` makes it again; `phalanx down` forgets it."


def repair(cluster: Cluster, error: ClusterError) -> bool:
    """Return True when another attempt may succeed.

    Raises ClusterError when the cluster is gone, or does not let this machine in.
    """
    if not cluster.ssh_config.exists():
        raise ClusterGone(f"cluster {cluster.name} was deleted", "`phalanx up` makes it again.")
    require_local_cloud(cluster)
    if isinstance(error, Silent):
        if not cluster.by_session:
            ssh_access.require_allowed(cluster)
        return False
    if isinstance(error, HostRefused):
        return _renew_trust(cluster)
    if isinstance(error, ConnectionLost):
        require_stack(cluster)
        require_running(cluster)
        return _follow_head(cluster)
    return False


def _follow_head(cluster: Cluster) -> bool:
    from phalanx.cluster.ready import follow_head  # here, because most failures have other causes

    return follow_head(cluster.aws(), cluster)


def require_local_cloud(cluster: Cluster) -> None:
    """Raise ClusterError for a cluster of a local cloud that is not running, and so is gone."""
    if cluster.aws().site.is_off():
        raise ClusterGone(
            f"cluster {cluster.name} is gone: the local cloud that it ran on is not running",
            _MAKE_OR_FORGET,
        )


def _renew_trust(cluster: Cluster) -> bool:
    """Read the authority again; return True if it has changed, so that another attempt may succeed."""
    cloud = cluster.aws()
    return ssh_config.write_authority(cluster, read_authority(cloud, cluster.table))


def require_living(name: str, running: Running | None) -> Running | None:
    """Return `running`. Raise ClusterError for a cluster that its service has ended for good."""
    if running is not None and running.ended:
        raise ClusterError(
            f"cluster {name} has no nodes: {running.ended}",
            "`phalanx down --keep yes` keeps data in EFS, and `phalanx up` makes the cluster again with them. "
            "A shared directory on the head's own disk (`storage: head`) is lost.",
            code="no-nodes",
        )
    return running


def require_running(cluster: Cluster) -> None:
    """Raise ClusterError when the cluster has stopped its nodes."""
    running = cluster.aws().machines.running(cluster.name)
    require_living(cluster.name, running)
    if running is not None and running.stopped:
        raise ClusterError(
            f"cluster {cluster.name} has no nodes: its lease ended, its budget was spent, or nobody used it",
            "`phalanx up` starts them again. The shared directory is as it was.",
            code="no-nodes",
        )


def find_stack(cluster: Cluster) -> StackState | None:
    """Return the state of the cluster's stack; None when it is gone or was never created. Raises CloudError."""
    cloud = cluster.aws()
    if cloud.site.is_off():
        return None
    found = stacks.describe(cloud, cluster.stack_id or cluster.name)
    return None if found is None or found.status == "DELETE_COMPLETE" else found


def require_stack(cluster: Cluster) -> StackState:
    """Return the state of the cluster's stack. Raises ClusterError, with the reason, when there is none."""
    found = find_stack(cluster)
    if found is not None:
        return found
    if not cluster.stack_id:
        raise ClusterError(
            f"cluster {cluster.name} was never created: `up` ended before there was a stack",
            "`phalanx up` makes it; `phalanx down` forgets it.",
            code="never-created",
        )
    require_local_cloud(cluster)
    raise ClusterGone(f"cluster {cluster.name} is gone: its stack no longer exists", _MAKE_OR_FORGET)
