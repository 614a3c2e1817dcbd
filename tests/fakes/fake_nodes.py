"""A cluster on this machine only: `ssh` on its PATH runs commands here, in the environment that sshd would provide.

What it can't reproduce (real networks, separate process ids per node) is for tests/cluster.
"""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from phalanx.code import bundle
from phalanx.jobs.job import Job
from phalanx.node.roster import Node, Roster, worker_name

KEY = "ssh-ed25519 AAAAfake"
_HERE = {"address": "127.0.0.1", "hostname": "ip-127-0-0-1"}
# It exits as ssh does when the host does not answer; otherwise the command gets a new session, a clean environment and
# the home directory as its working directory.
_SSH = """#!/bin/sh
while [ $# -gt 2 ]; do
  case $1 in -o) shift 2;; -*) shift;; *) break;; esac
done
host=$1; shift
if [ -e "{root}/down.$host" ]; then
  echo "$host" >> "{root}/refused"
  echo "ssh: connect to host $host port 22: Connection refused" >&2
  exit 255
fi
[ ! -e "{root}/motd" ] || cat "{root}/motd"
mkdir -p "{root}/tmp.$host"
exec setsid env -i PATH="{path}" HOME=/ LANG=C SSH_CONNECTION=fake FAKE_NODE="$host" TMPDIR="{root}/tmp.$host" \\
  PHALANX_ROSTER="{root}/roster.$host" \\
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 sh -c "$*"
"""


@dataclass(frozen=True)
class Completed:
    status: int
    stdout: bytes
    stderr: bytes


class FakeRemote:
    """The head, with the interface of remote.Remote."""

    def __init__(self, env: dict[str, str], shell: tuple[str, ...]) -> None:
        self._env = env
        self._shell = shell

    def run(self, command, *, input=None, timeout_s, check=True):
        done = subprocess.run(
            [*self._shell, command], input=input or b"", capture_output=True, timeout=timeout_s, env=self._env
        )
        assert not check or done.returncode == 0, done.stderr.decode()
        return Completed(done.returncode, done.stdout, done.stderr)

    def popen(self, command, *, stdin=None, stdout=None, stderr=None):
        return subprocess.Popen(
            [*self._shell, command], stdin=stdin, stdout=stdout, stderr=stderr, env=self._env, start_new_session=True
        )


class FakeCluster:
    """Several node names for one machine; `down` makes one refuse connections. `shell` runs commands on the head."""

    name = "fake"
    stack_id = "arn:aws:cloudformation:us-east-1:1:stack/fake/1"
    shell: tuple[str, ...] = ("sh", "-c")

    def __init__(self, root: Path, nodes: int = 2, slots: int = 2) -> None:
        self.root = root
        self.shared = str(root / "shared")
        self.roster = roster(nodes, slots)
        self._generation = self.roster.generation
        (root / "shared").mkdir()
        (root / "roster.json").write_text(self.roster.to_json())
        os.utime(root / "roster.json", (0, 0))  # an old roster, which all nodes have applied
        path = f"{root}/bin:{Path(sys.executable).parent}:/usr/bin:/bin"
        self.env = {
            "PATH": path,
            "HOME": "/",
            "LANG": "C",
            "PHALANX_ROSTER": f"{root}/roster.json",
            "FAKE_NODE": "head",
        }
        for name in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "OMPI_MCA_mpi_yield_when_idle"):
            self.env[name] = "1"
        ssh = root / "bin" / "ssh"
        ssh.parent.mkdir()
        ssh.write_text(_SSH.format(root=root, path=path))
        ssh.chmod(ssh.stat().st_mode | stat.S_IXUSR)

    def remote(self) -> FakeRemote:
        return FakeRemote(self.env, self.shell)

    def settle_by(self, command: str) -> None:
        """Its head is never another."""

    def down(self, node: str) -> None:
        (self.root / f"down.{node}").touch()

    def up(self, node: str) -> None:
        """Make a node accept connections again."""
        (self.root / f"down.{node}").unlink()

    def up_once_it_refused(self, node: str) -> None:
        deadline = time.monotonic() + 120
        while not (self.root / "refused").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        self.up(node)

    def change_roster(self, nodes: int) -> None:
        """Write a new generation with only the first nodes, as the head does."""
        self._generation += 1
        newer = self.roster._replace(generation=self._generation, nodes=self.roster.nodes[:nodes])
        beside = self.root / "roster.json.new"
        beside.write_text(newer.to_json())
        beside.replace(self.root / "roster.json")

    def replace(self, node: str, instance_id: str) -> None:
        """Let another machine answer at this node's name, which knows its own id."""
        (another,) = (
            one._replace(instance_id=instance_id, head=True, **_HERE) for one in self.roster.nodes if one.name == node
        )
        (self.root / f"roster.{node}").write_text(self.roster._replace(nodes=(another,)).to_json())

    def be_found(self, gpus: int = 0) -> None:
        """Give the only node an address that can be bound, by which a scheduler's starter finds its node."""
        self._describe_nodes(gpus=gpus, **_HERE)

    def have_gpus(self, gpus: int) -> None:
        """Let the roster give each node this many GPUs."""
        self._describe_nodes(gpus=gpus)

    def _describe_nodes(self, **fields: Any) -> None:
        self.roster = self.roster._replace(nodes=tuple(node._replace(**fields) for node in self.roster.nodes))
        (self.root / "roster.json").write_text(self.roster.to_json())
        os.utime(self.root / "roster.json", (0, 0))

    def greet(self, text: str) -> None:
        """Make every node's login scripts print this."""
        (self.root / "motd").write_text(text)


def roster(nodes: int, slots: int) -> Roster:
    """Make a roster of this many nodes."""
    return Roster("fake", 1, nodes, 1, tuple(_node(number, slots) for number in range(1, nodes + 1)))


def _node(number: int, slots: int) -> Node:
    instance, address, hostname = f"i-{number}", f"10.0.1.{number}", f"ip-10-0-1-{number}"
    machine = (instance, address, hostname, "us-east-1a", "c5.large")
    return Node(worker_name(number), *machine, 0, slots, number == 1, KEY, KEY)


def marked(job_id: str) -> list[int]:
    """Return the pids of processes whose environment has the job's mark."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environ = (process / "environ").read_bytes()
        except OSError:
            continue
        if f"PHALANX_JOB={job_id}".encode() in environ.split(b"\0"):
            found.append(int(process.name))
    return found


def kill_starter(job: Job, node: str) -> None:
    """Kill a starter and its guard at once, as a kernel that is out of memory does."""
    kill_chosen(lambda argv, env: "starter" in argv and job.id in argv and f"FAKE_NODE={node}" in env)


def kill_marked(job_id: str) -> None:
    for pid in marked(job_id):
        kill(pid)


def kill_chosen(chosen: Callable[[list[str], list[str]], bool], besides: int | None = None) -> None:
    """Kill every process on this machine whose command line and environment are chosen.

    They are stopped first: one that outlives the other, if for a moment, acts on that.
    """
    found = [pid for pid in pids(chosen) if pid != besides]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in found:
            kill(pid, number)


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Send a signal to a process, which may end by itself meanwhile."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def change_runner(monkeypatch: pytest.MonkeyPatch, *changes: tuple[str, str, str]) -> None:
    """Give this test's jobs a runner with changes: in a module, what a pattern matches becomes a text."""
    sources = {name: (bundle._PACKAGE / name).read_text() for name in bundle._modules()}
    for module, pattern, text in changes:
        sources[module], found = re.subn(pattern, text, sources[module], flags=re.MULTILINE)
        assert found == 1
    content = bundle._build({name: source.encode() for name, source in sources.items()})
    monkeypatch.setattr(bundle, "runner_zip", lambda: content)


def pids(chosen: Callable[[list[str], list[str]], bool]) -> Iterator[int]:
    """Find processes on this machine by their command line and their environment."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            argv = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
            env = (process / "environ").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if chosen(argv, env):
            yield int(process.name)
