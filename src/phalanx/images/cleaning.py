"""Removes from a cluster's only node all that binds it to its stack, its users and its instance, for an image of it."""

from __future__ import annotations

from phalanx.cluster.cluster_record import JOB_USER, Cluster
from phalanx.cluster.gather import gather
from phalanx.errors import ClusterError
from phalanx.node.roster import Node

_TIMEOUT_S = 300.0
# What AWS's guidelines for shared AMIs name, and phalanx's own state (docs/aws-behaviour.md 5.15).
# The agent first, which would write its files again. "[p]art" does not match the shell that looks for it.
_CLEAN = """set -eu
if [ -d /run/systemd/system ]; then systemctl disable --now phalanx; fi
pkill -f 'cloud/instance/scripts/[p]art-001' || :
sed -n '/^# phalanx: begin/,/^# phalanx: end/p' /etc/fstab 2>/dev/null |
while read -r device place rest; do case $device in '#'*) ;; *) umount -l "$place" || : ;; esac; done
for file in /etc/fstab /etc/hosts /etc/environment; do
  [ ! -e $file ] || sed -i '/^# phalanx: begin/,/^# phalanx: end/d' $file
done
[ ! -e /etc/ssh/ssh_known_hosts ] || sed -i '/^@cert-authority deeplearning-/d' /etc/ssh/ssh_known_hosts
uid=$(id -u $user)
[ "$uid" = 0 ] || pkill -KILL -u $user || :
for file in passwd group shadow gshadow; do [ ! -e /etc/$file ] || sed -i "/^$user:/d" /etc/$file; done
rm -rf /home/$user "/etc/systemd/system/user@$uid.service" /opt/phalanx /opt/deeplearning /var/lib/phalanx
rm -rf /etc/ssh/phalanx /etc/ssh/*_config.d/60-phalanx.conf /etc/profile.d/phalanx.sh /etc/udev/rules.d/60-phalanx.rules
rm -f /etc/systemd/system/phalanx*.service /etc/systemd/system/*.wants/phalanx*.service
rm -f /etc/ssh/ssh_host_* /root/.ssh/authorized_keys /home/*/.ssh/authorized_keys /root/.*_history /home/*/.*_history
rm -rf /var/lib/cloud/* /var/log/journal/* /var/lib/systemd/random-seed /var/lib/dhcp/*.leases
[ -L /var/lib/dbus/machine-id ] || rm -f /var/lib/dbus/machine-id
: >/etc/machine-id
find /var/log -type f -exec truncate -s 0 {} + 2>/dev/null || :
find /tmp /var/tmp -xdev -mindepth 1 -delete 2>/dev/null || :
sync
"""


def clean(cluster: Cluster) -> None:
    """Clean the cluster's node. Afterwards nobody can log in to it. Raises ClusterError."""
    name = only_node(cluster).name
    for verdict in gather(cluster, f"user={JOB_USER}\n{_CLEAN}", nodes=[name], sudo=True, timeout_s=_TIMEOUT_S):
        if not verdict.ok:
            said = verdict.error or verdict.stderr.decode(errors="replace").strip()
            raise ClusterError(
                f"{name} is not clean: {said}",
                "Make no image of it. Delete the cluster: phalanx down",
                code="node-not-clean",
            )


def only_node(cluster: Cluster) -> Node:
    """Return the cluster's node. Raises ClusterError if there are more: they would replace one that falls silent."""
    members = cluster.members()
    if len(members) > 1:
        raise ClusterError(
            f"cluster {cluster.name} has {len(members)} nodes, and an image is made of a cluster with one",
            "Write `nodes: 1` into a phalanx.yaml of its own, or run: phalanx scale 1",
            code="one-node-needed",
        )
    return members[0]
