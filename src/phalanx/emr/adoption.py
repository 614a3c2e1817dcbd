"""Adopt an EMR cluster that phalanx did not make: a stack with the rendezvous, and the agent on its nodes."""

from __future__ import annotations

import re
import shlex
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from phalanx import state_files
from phalanx.aws import stacks
from phalanx.aws.model import StackEvent
from phalanx.cluster import give_back, keys
from phalanx.cluster.cluster_record import JOB_USER, Cluster
from phalanx.cluster.deletion import Deletion
from phalanx.cluster.give_back import Released
from phalanx.cluster.ready import record_ready, settings
from phalanx.cluster.stack import Creation, Progress, Stack
from phalanx.counts import first_of
from phalanx.errors import ClusterError, PhalanxError, StackFailed
from phalanx.node import outcome
from phalanx.node.account import UID as JOB_UID
from phalanx.node.release import OPENED
from phalanx.node.roster import Roster
from phalanx.node.settings import ON_AWS
from phalanx.ssh.remote import Remote, close_all
from phalanx.template.emr import adopted
from phalanx.template.emr.adopted import EmrCluster, Instance, Terms

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws

NODE_TIMEOUT_S = 600
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,26}")
_CLOSED = re.compile(r"closed ([0-7]{1,4})")
_STACK = re.compile(r"stack/([A-Za-z][A-Za-z0-9-]{0,127})/.*")
USER = "hadoop"
_MASTER = "emr-master"
_AT_ONCE = 16
_LOOK_S = 60.0
OPEN = """\
sudo -n sh -c '[ -s {0} ] || stat -c "%a $1" "$1" > {0}
chmod o+rwx,+t "$1"' sh {1}
"""
"""Lets everybody create files at the top of a directory, and notes for phalanx.node.release how it was."""
# Longer than the agent tries to boot.
_BOOT_S = 1200.0
_LOOK = """\
mountpoint -q {0} && echo shared &&
  if [ -s {3} ]; then printf 'closed %s\\n' "$(cut -d ' ' -f 1 {3})"; fi &&
  find {0} -maxdepth 0 ! -perm -2 ! -uid {2} ! '(' -uid 0 -empty ')' -printf 'closed %m\\n'
sudo -n true 2>/dev/null && echo sudo
/usr/bin/python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))' && echo python
{{ getent passwd {1} || getent group {1}; }} > /dev/null && echo user
{{ getent passwd {2}; getent group {2}; }} | grep -qv '^{1}:' && echo uid
sudo -n grep -o 'stack/[^/]*/[^"]*' /opt/phalanx/config.json 2>/dev/null
true
"""


@dataclass(frozen=True)
class Wanted:
    """What the user chose. `name` may be ""; `least` is the fewest nodes, 0 for all."""

    name: str = ""
    shared: str = "/efs"
    least: int = 0
    identity: Path | None = None


class EmrAdoption:
    """Look at an EMR cluster's nodes; then adopt it by iterating `steps()`, and read `result`."""

    def __init__(self, cloud: Aws, domain: str, found: EmrCluster, wanted: Wanted) -> None:
        self.cloud, self.found, self._domain = cloud, found, domain
        self.name = wanted.name or (found.name if _NAME.fullmatch(found.name) else found.cluster_id)
        self._identity = wanted.identity
        self._refuse_another()
        self.closed = ""
        """The mode of the mounted shared directory if jobs can't write at its top."""
        self._left: list[Instance] = []  # with the agent of a stack that is gone
        self._nodes = Nodes(found, self.name, cloud.site.ssh_route(), wanted.identity)
        try:
            served = self._judge(self._nodes.look(wanted.shared), wanted.shared)
        except BaseException:
            self.close()
            raise
        least = wanted.least or len(found.instances)
        self.terms = Terms(found, self.name, least, NODE_TIMEOUT_S, wanted.shared, served)
        self.result: tuple[Cluster, Roster] | None = None
        self._stack: Stack | None = None
        self._problem = ""

    def close(self) -> None:
        """Close the connections to the nodes, and leave no file of a cluster that was not adopted."""
        self._nodes.close()
        directory = state_files.cluster_directory(self.name)
        if directory.exists() and not any(directory.iterdir()):
            directory.rmdir()

    def steps(self) -> Iterator[Progress | Released]:
        """Yield progress. Raises StackFailed when it failed and was undone."""
        yield from (give_back.release_node(self._nodes.remote(one), one.instance_id) for one in self._left)
        self.terms = replace(self.terms, ssh_public_key=keys.make(self.name))
        document, parameters = adopted.request(self.terms)
        try:
            stack = Stack(self.cloud, self.name, stacks.create(self.cloud, self.name, document, parameters))
            self._stack = stack
        except PhalanxError:
            Cluster(self.name, "", "").forget()
            raise
        creation, begun = Creation(stack), False
        for step in creation.steps():
            yield step
            if not begun and _has_begun(step, adopted.CONDITION):
                begun = True
                try:
                    self._start_agents(stack)
                except Exception:
                    yield from self.undo()
                    raise
        if creation.state is None or not creation.ready:
            yield from self._undo(creation)
        else:
            chosen = {"identity": str(self._identity.absolute())} if self._identity else {}
            known = settings(self.cloud, creation.state)
            self.result = record_ready(self.cloud, creation.state, {**known, **chosen})

    def _start_agents(self, stack: Stack) -> None:
        """Begin to start the agent on all nodes, which takes a while."""
        made = {one.logical_id: one.physical_id for one in stacks.resources(self.cloud, stack.stack_id)}
        job_role = job_role_of(self.found, made)
        if self.closed:
            self._nodes.open(self.terms.shared)
        scripts = {
            one: adopted.boot(self.terms, one, stack.stack_id, self._domain, made, job_role)
            for one in self.found.instances
        }
        threading.Thread(target=self._boot, args=(scripts, made[adopted.HANDLE]), daemon=True).start()

    def _boot(self, scripts: dict[Instance, bytes], handle: str) -> None:
        """Run the scripts on the nodes; the stack fails if that is impossible on the master."""
        try:
            failed = self._nodes.boot(scripts)
            if self.found.master in failed:
                self._problem = failed[self.found.master]
        except Exception as error:
            self._problem = str(error)
        if self._problem:
            outcome.signal(handle, "FAILURE", f"the agent could not be started: {self._problem}", ON_AWS)

    def _undo(self, creation: Creation) -> Iterator[Progress]:
        """Release the nodes, delete the stack, and raise StackFailed with the reason."""
        failure = creation.failure()
        yield from self.undo()
        raise StackFailed(
            f"EMR cluster {self.found.cluster_id} could not be adopted:\n{failure}",
            "Everything that was added is removed again; the EMR cluster runs as before.",
            code="adoption-failed",
        )

    def undo(self) -> Iterator[Progress]:
        """Remove what an adoption that failed or was interrupted has added."""
        if self._stack is not None:
            self._release()
            yield from Deletion(self._stack).steps()
        Cluster(self.name, "", "").forget()

    def _release(self) -> None:
        for one in reversed(self.found.instances):
            give_back.release_node(self._nodes.remote(one), one.instance_id)

    def _refuse_another(self) -> None:
        if stacks.describe(self.cloud, self.name) is not None or self.name in state_files.known():
            raise ClusterError(
                f"a cluster or stack {self.name} exists already",
                "Choose another name: `phalanx adopt --emr J-ID NAME`.",
                code="name-taken",
            )

    def _judge(self, has: Mapping[Instance, set[str]], shared: str) -> bool:
        """Return whether the master has to serve the shared directory. Raises ClusterError with all that is wrong."""
        wrong: list[str] = []
        for one, marks in has.items():
            wrong += unsuited(one, marks)
            stacks = [found[1] for found in map(_STACK.fullmatch, marks) if found]
            wrong += [f"{one.instance_id} is a node of cluster {name}" for name in stacks if self._exists(name)]
            self._left += [one] if stacks else []
        self.closed = next((mode[1] for mode in map(_CLOSED.fullmatch, has[self.found.master]) if mode), "")
        without = [one.instance_id for one, marks in has.items() if "shared" not in marks]
        if without and len(without) < len(has):
            wrong.append(f"{shared} is mounted on the other nodes, and not on {first_of(without)}")
        if wrong:
            hint = f"Mount one file system at {shared} on all nodes, or choose another --shared." if without else ""
            raise ClusterError(first_of(wrong, "\n"), hint, code="unsuited-emr-cluster")
        return bool(without)

    def _exists(self, name: str) -> bool:
        """Whether a stack is there. The agent of another stays on a node that was not reached when that ended."""
        return stacks.describe(self.cloud, name) is not None


_TAKEN = {
    "user": f"has a user or group {JOB_USER} of its own, and jobs would run as that user",
    "uid": f"uses the uid or gid {JOB_UID} for another user or group, and jobs would run with it",
}
_NEEDED = {"sudo": f"sudo for {USER}", "python": "Python 3.9 as /usr/bin/python3"}


def unsuited(one: Instance, marks: set[str]) -> list[str]:
    """Return what keeps an instance with these marks from becoming a node."""
    wrong = [f"{one.instance_id} has no {what}" for mark, what in _NEEDED.items() if mark not in marks]
    if not any(map(_STACK.fullmatch, marks)):
        # Jobs would run as that user, and `down` would remove it.
        wrong += [f"{one.instance_id} {what}" for mark, what in _TAKEN.items() if mark in marks]
    return wrong


def job_role_of(found: EmrCluster, made: Mapping[str, str]) -> str:
    """Return the ARN of the role of jobs, from the stack's physical ids."""
    return f"{found.role_arn.rpartition(':')[0]}:role/{made['JobRole']}"


def _has_begun(step: Progress, logical_id: str) -> bool:
    return isinstance(step, StackEvent) and (step.logical_id, step.status) == (logical_id, "CREATE_IN_PROGRESS")


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
        user or uid if the name or number of the job user is in use; closed and its mode if jobs can't write in shared.

        Raises ClusterError if one can't be reached.
        """
        master = self.cluster.master
        command = _LOOK.format(shlex.quote(shared), JOB_USER, JOB_UID, OPENED)
        try:
            self.remote(master).connect()
        except ClusterError as error:
            raise self._unreachable(error) from error
        done = self.on_all(
            self.cluster.instances,
            lambda one: self.remote(one).run(command, timeout_s=_LOOK_S).stdout.decode(errors="replace"),
        )
        return {one: set(text.splitlines()) for one, text in done.items()}

    def open(self, shared: str) -> None:
        """Let jobs write at the top of a mounted directory, and note on the master how it was."""
        master = self.remote(self.cluster.master)
        master.run(OPEN.format(OPENED, shlex.quote(shared)), timeout_s=_LOOK_S)

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
