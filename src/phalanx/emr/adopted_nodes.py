"""The nodes of an EMR cluster before it is adopted: logged in to as `hadoop`, looked at, and given the agent."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from phalanx import state_files
from phalanx.cluster.cluster_record import JOB_USER
from phalanx.errors import ClusterError
from phalanx.node.account import UID as JOB_UID
from phalanx.ssh.remote import Remote, close_all
from phalanx.template.emr.adopted import EmrCluster, Instance

USER = "hadoop"
_MASTER = "emr-master"
_AT_ONCE = 16
_LOOK_S = 60.0
# Longer than the agent tries to boot.
_BOOT_S = 1200.0
_LOOK = """\
mountpoint -q {0} && echo shared
sudo -n true 2>/dev/null && echo sudo
/usr/bin/python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))' && echo python
{{ getent passwd {1} || getent group {1}; }} > /dev/null && echo user
{{ getent passwd {2}; getent group {2}; }} | grep -qv '^{1}:' && echo uid
sudo -n grep -o 'stack/[^/]*/[^"]*' /opt/phalanx/config.json 2>/dev/null
true
"""


class Nodes:
    """All instances of a cluster by ssh: the master directly, and the others by way of it."""

    def __init__(self, cluster: EmrCluster, name: str, route: Sequence[str], identity: Path | None) -> None:
        self.cluster = cluster
        self._config = state_files.cluster_directory(name) / "adoption" / "ssh_config"
        state_files.write_private(self._config, _config(cluster, route, identity, self._config.parent), lasts=False)

    def close(self) -> None:
        """Close the connections, and remove their files."""
        close_all(self._config)
        shutil.rmtree(self._config.parent, ignore_errors=True)

    def remote(self, instance: Instance) -> Remote:
        master = Remote(self._config, _MASTER, USER)
        if instance.is_master:
            return master
        return Remote(self._config, instance.address, USER, via=master)

    def look(self, shared: str) -> dict[Instance, set[str]]:
        """Return what each instance has: shared, sudo, python, and stack/NAME/ID if the agent of that stack is there;
        user or uid if the name or number of the job user is in use.

        Raises ClusterError if one can't be reached.
        """
        master = self.cluster.master
        command = _LOOK.format(shlex.quote(shared), JOB_USER, JOB_UID)
        try:
            self.remote(master).connect()
        except ClusterError as error:
            raise self._unreachable(error) from error
        done = self.on_all(
            self.cluster.instances,
            lambda one: self.remote(one).run(command, timeout_s=_LOOK_S).stdout.decode(errors="replace"),
        )
        return {one: set(text.splitlines()) for one, text in done.items()}

    def boot(self, scripts: dict[Instance, bytes]) -> dict[Instance, str]:
        """Run each instance's script; return the output of those that failed."""

        def run(one: Instance) -> str:
            done = self.remote(one).run("bash -s", input=scripts[one], timeout_s=_BOOT_S, check=False)
            return (done.stdout + done.stderr).decode(errors="replace")[-2000:] if done.status else ""

        return {one: text for one, text in self.on_all(scripts, run).items() if text}

    def on_all(self, instances: Iterable[Instance], do: Callable[[Instance], str]) -> dict[Instance, str]:
        """Call `do` for each instance, some at a time. Raises the first error."""
        chosen = list(instances)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return dict(zip(chosen, pool.map(do, chosen), strict=True))

    def _unreachable(self, error: ClusterError) -> ClusterError:
        found = self.cluster
        if found.master_address == found.master.address:
            return ClusterError(
                f"the master of EMR cluster {found.cluster_id} can't be reached by ssh as {USER}:"
                f" it has only the private address {found.master_address}: {error.message}",
                "Adopt it from a machine that reaches that address, such as one in its VPC or on a VPN.",
                code="no-login",
            )
        return ClusterError(
            f"the master of EMR cluster {found.cluster_id} can't be reached by ssh as {USER}"
            f" ({found.master_address}): {error.message}",
            f"Let this machine in: `aws ec2 authorize-security-group-ingress --group-id {found.group} --protocol tcp"
            f" --port 22 --cidr YOUR-ADDRESS/32`. Choose the file with the private key of {found.key_pair} by -i.",
            code="no-login",
        )


def _config(cluster: EmrCluster, route: Sequence[str], identity: Path | None, directory: Path) -> str:
    """Return ssh's settings. Host keys are not known yet; what is sent is no secret, and AWS proves who joins."""
    chosen = [f'IdentityFile "{identity.absolute()}"', "IdentitiesOnly yes"] if identity else []
    lines = [
        f"Host {_MASTER}",
        f"    HostName {cluster.master_address}",
        *(f"    {option}" for option in route),
        "Host *",
        *(f"    {option}" for option in chosen),
        f'    UserKnownHostsFile "{directory}/known_hosts"',
        "    GlobalKnownHostsFile /dev/null",
        "    StrictHostKeyChecking accept-new",
        "    ForwardAgent no",
        "    ConnectTimeout 15",
        "    ServerAliveInterval 5",
        "    LogLevel ERROR",
    ]
    return "\n".join(lines) + "\n"
