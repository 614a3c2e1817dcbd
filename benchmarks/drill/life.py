"""The life of a local cluster as its user lives it: each step returns what is wrong, or ""."""

from __future__ import annotations

import re
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.drill.local_cluster import LocalCluster, listed, reason, started
from phalanx.errors import PhalanxError

# EC2 notices a machine that dies silently after minutes (docs/aws-behaviour.md 3.16).
NOTICED_AFTER_S = 120.0
# By kind of weather, what a job or a command says of a node that stands still, and of a file server that is away.
_NAMED = {"stalls": r"deeplearning-worker|the head", "storage": r"the shared directory \S+ does not answer"}
_GONE_WITHIN_S = 10.0


class Life:
    """The steps that drills and the weather's soak share; `deadline_s` is how long each may take."""

    def __init__(self, cluster: LocalCluster, nodes: int, deadline_s: float, speed: float) -> None:
        self.cluster, self.nodes = cluster, nodes
        self._deadline_s, self._speed = deadline_s, speed

    def up(self) -> str:
        return self.command("up")

    def command(self, *arguments: str) -> str:
        """Run a command of the user's."""
        try:
            done = self.cluster.phalanx(*arguments, timeout_s=self._deadline_s)
        except subprocess.TimeoutExpired:
            return f"`{arguments[0]}` did not end within {self._deadline_s:.0f} s"
        return verdict(arguments, done.returncode, done.stderr)

    def run(self, *words: str) -> str:
        """Run a job; weather that passes ends it with its cause named, and the user starts it again."""
        deadline = time.monotonic() + self._deadline_s
        while (wrong := self.command(*self.job(*words))) and self._passes(wrong) and time.monotonic() < deadline:
            time.sleep(1)
        return wrong

    def job(self, *words: str) -> tuple[str, ...]:
        """Return the arguments that run a small program on all nodes."""
        return ("run", "-N", "1", "--directory", str(self.cluster.code), "--", *(words or ("hostname",)))

    def _passes(self, wrong: str) -> bool:
        struck = self.struck()
        return any(struck.get(kind) and re.search(named, wrong) for kind, named in _NAMED.items())

    def replace(self) -> str:
        """End a worker's machine without notice; its name must come back on another machine."""
        before = self.ready()
        worker = max(before)
        death = {"instance_id": before[worker], "silent": True, "noticed_after_s": NOTICED_AFTER_S / self._speed}
        self.cluster.fault(kill=death)
        return self.wait_for(lambda ready: len(ready) == self.nodes and ready.get(worker) != before[worker])

    def scale(self) -> str:
        """Add a node."""
        self.nodes += 1
        return self.command("scale", str(self.nodes)) or self.wait_for(lambda ready: len(ready) == self.nodes)

    def down(self) -> str:
        """Delete the cluster; one whose creation failed is deleted already, and its local cloud has ended."""
        if self.cluster.endpoint() is None:
            return ""
        processes = self.cluster.processes()
        wrong = self.command("down", "--yes")
        made_by_hand = self._made_by_hand()
        if wrong and made_by_hand and all(neighbour in wrong for neighbour in made_by_hand):
            # They are not phalanx's to delete: it names them, and their owner removes them.
            self._delete(made_by_hand)
            wrong = self.command("down", "--yes")
        return wrong or self.left(processes)

    def left(self, processes: Mapping[int, str]) -> str:
        """Return what a deleted cluster has left on this machine: processes, mounts and sockets."""
        deadline = time.monotonic() + _GONE_WITHIN_S
        while (
            alive := [one for one in processes.items() if started(one[0]) == one[1]]
        ) and time.monotonic() < deadline:
            time.sleep(0.1)
        state = self.cluster.state
        found = {
            "processes": sorted(pid for pid, _ in alive),
            "mounts": [line for line in Path("/proc/self/mounts").read_text().splitlines() if f" {state}/" in line],
            "sockets": [str(path) for path in state.rglob("*") if path.is_socket()],
            "endpoints": [str(path) for path in state.rglob("endpoint.json")],
        }
        return "; ".join(f"{what} are left: {those}" for what, those in found.items() if those)

    def _made_by_hand(self) -> list[str]:
        return re.findall(r" weather: neighbours: (?:interface|security group) (\S+) ", self.cluster.log())

    def _delete(self, neighbours: list[str]) -> None:
        api = self.cluster.api()
        for made in neighbours:
            if made.startswith("eni-"):
                api.call("ec2", "delete_network_interface", NetworkInterfaceId=made)
            else:
                api.call("ec2", "delete_security_group", GroupId=made)

    def ready(self) -> dict[str, str]:
        """Return the ready nodes' instances by name."""
        done = self.cluster.phalanx("nodes", "--json")
        nodes: list[dict[str, Any]] = listed(done.stdout) if done.returncode == 0 else []
        return {node["name"]: node["instance_id"] for node in nodes if node["state"] == "ready"}

    def wait_for(self, is_done: Callable[[dict[str, str]], bool], every_s: float = 5.0) -> str:
        """Wait until the ready nodes are as they should be; each look takes a third of a second of CPU time."""
        deadline = time.monotonic() + self._deadline_s
        while not is_done(ready := self.ready()):
            if time.monotonic() > deadline:
                return f"after {self._deadline_s:.0f} s the ready nodes are {ready}{self.missing()}"
            time.sleep(every_s)
        return ""

    def missing(self) -> str:
        """Return what `status` says of missing nodes."""
        status = self.cluster.phalanx("status").stdout
        return "".join(f"; {line.strip()}" for line in status.splitlines() if line.lstrip().startswith("missing"))

    def struck(self) -> dict[str, int]:
        """Count by kind what the weather has done, from the local cloud's log."""
        return dict(Counter(re.findall(r" weather: ([a-z-]+): ", self.cluster.log())))


def verdict(arguments: tuple[str, ...], code: int, stderr: str) -> str:
    """Return what is wrong with the end of a command; a traceback always is."""
    if code == 0 and "Traceback (most recent call last)" not in stderr:
        return ""
    ended = re.findall(r"^job \S+ (?:failed|lost|stopped).*", stderr, re.MULTILINE)
    return f"`{arguments[0]}` ended with {code}: {'; '.join(ended) or reason(stderr) or stderr[-500:]}"


def outcome(step: Callable[[], str]) -> str:
    """Take a step, and return what is wrong, also if a command did not end or the local cloud is gone."""
    try:
        return step()
    except subprocess.TimeoutExpired as late:
        return f"{' '.join(late.cmd[3:])} did not end within {late.timeout:.0f} s"
    except PhalanxError as error:
        return f"the local cloud: {error.message}"
