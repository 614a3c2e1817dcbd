"""The soak test's cluster: its jobs as the user sees them, its processes as the machine sees them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.cluster import BenchCluster
from benchmarks.measure import PHALANX, descendants
from phalanx.runner.checked import VERB_AT

NODES = tuple(f"deeplearning-worker{number}" for number in range(1, 5))
BYSTANDER = "86399"  # the user's own `sleep` on every node
BYSTANDER_JOB = "86398"
_VICTIM_TIMEOUT_S = 60.0
_POLL_EVERY_S = 0.03

# Prints forever, and leaves a child without the mark, the session and the parent. It imports its engine meanwhile: that
# takes seconds, in which it may be struck, too.
RANK = """import importlib, os, subprocess, sys, threading, time
subprocess.Popen(["env", "-i", "setsid", "sleep", sys.argv[1]])

def load(module):
    try:
        importlib.import_module(module)
    except Exception as error:
        print(f"{module}: {error!r}", file=sys.stderr, flush=True)
        os._exit(3)

if sys.argv[2:] and sys.argv[2]:
    threading.Thread(target=load, args=sys.argv[2:3], daemon=True).start()
while True:
    print("at work", flush=True)
    time.sleep(0.1)
"""


@dataclass(frozen=True)
class Seen:
    """A process on a node, seen from this machine; `argv` has the base names in its command `line`."""

    pid: int
    hostname: str
    line: str
    argv: tuple[str, ...]
    job: str


class SoakCluster:
    """A BenchCluster with what trials need."""

    def __init__(self, bench: BenchCluster) -> None:
        self.bench = bench
        self.code = bench.directory / "code"
        self.code.mkdir()
        (self.code / "rank.py").write_text(RANK)
        self._nodes: dict[str, dict[str, Any]] = {}

    def phalanx(self, *arguments: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [PHALANX, *arguments],
            cwd=self.bench.directory,
            env=self.bench.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command line in the background; `communicate` reads its stderr."""
        return subprocess.Popen(
            [PHALANX, *arguments],
            cwd=self.bench.directory,
            env=self.bench.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    # As the machine below sees it.

    def processes(self) -> Iterator[Seen]:
        """Yield every process of every node, including nodes that are cut off."""
        endpoint = json.loads((self.bench.state / "local" / "endpoint.json").read_text())
        for pid in descendants(endpoint["pid"]):
            if seen := _look_at(pid):
                yield seen

    def kill(self, node: str, chosen: Callable[[Seen], bool]) -> float | None:
        """Kill the first chosen process that appears on this node; return when, or None after a timeout."""
        address = self.nodes()[node]["address"]
        hostname = f"ip-{address.replace('.', '-')}"
        deadline = time.monotonic() + _VICTIM_TIMEOUT_S
        while time.monotonic() < deadline:
            for seen in self.processes():
                if seen.hostname == hostname and chosen(seen) and _kill(seen.pid):
                    return time.time()
            time.sleep(_POLL_EVERY_S)
        return None

    def wait_for_new_job(self, known: set[str]) -> str:
        """Wait for a new job on the head; return its id, or "" after a timeout."""
        deadline = time.monotonic() + _VICTIM_TIMEOUT_S
        while time.monotonic() < deadline:
            for seen in self.processes():
                verb, *job = verb_of(seen.argv) or ("",)
                if verb == "submit" and job and job[0] not in known:
                    return job[0]
            time.sleep(_POLL_EVERY_S)
        return ""

    def left_of(self, job_id: str, token: str) -> list[str]:
        """List the job's processes on all nodes, by its mark and by the argument of its ranks' `sleep`."""
        return [f"{one.hostname}: {one.line[:120]}" for one in self.processes() if is_of(one, job_id, token)]

    def bystanders(self) -> dict[str, int]:
        """Count the processes of the user and of the other job on all nodes."""
        commands = [one.argv for one in self.processes()]
        return {token: commands.count(("sleep", token)) for token in (BYSTANDER, BYSTANDER_JOB)}

    # As the user sees it.

    def fault(self, document: dict[str, Any]) -> float:
        """Inject a fault into the local cloud; return when."""
        endpoint = json.loads((self.bench.state / "local" / "endpoint.json").read_text())
        request = urllib.request.Request(
            endpoint["url"] + "/_localcloud/faults",
            method="POST",
            data=json.dumps(document).encode(),
            headers={"X-Localcloud-Key": endpoint["secret_access_key"]},
        )
        urllib.request.urlopen(request, timeout=30).close()
        return time.time()

    def nodes(self) -> dict[str, dict[str, Any]]:
        """Return the output of `phalanx nodes --json` by name; called once per trial."""
        if not self._nodes:
            self._nodes = {one["name"]: one for one in json.loads(self.phalanx("nodes", "--json").stdout)}
        return self._nodes

    def forget_nodes(self) -> None:
        """Query the nodes again."""
        self._nodes = {}
        self.nodes()

    def job(self, job_id: str) -> dict[str, Any]:
        """Return the job as `phalanx jobs --json` shows it; {} when the command fails."""
        done = self.phalanx("jobs", "--json")
        jobs = json.loads(done.stdout) if done.returncode == 0 and done.stdout.strip() else []
        return next((job for job in jobs if job["id"] == job_id), {})

    def job_ids(self) -> set[str]:
        return {job["id"] for job in json.loads(self.phalanx("jobs", "--json").stdout or "[]")}

    def newest(self) -> str:
        return max(self.job_ids(), default="")

    def heal(self, broken: str, timeout_s: float = 120) -> bool:
        """Wait until another machine has the broken node's name and every node can log in to the others."""
        deadline = time.monotonic() + timeout_s
        names = " ".join(NODES)
        meet = f"for name in {names}; do ssh -o BatchMode=yes $name true || exit 1; done; echo met"
        gone = self.nodes()[broken]["instance_id"]
        while time.monotonic() < deadline:
            # A login to a dead node takes 20 s to fail.
            if self._is_whole_without(gone) and self.phalanx("exec", "--", meet).stdout.count("met\n") == len(NODES):
                return True
            time.sleep(0.5)
        return False

    def _is_whole_without(self, instance_id: str) -> bool:
        done = self.phalanx("nodes", "--json")
        nodes = json.loads(done.stdout) if done.returncode == 0 else []
        there = [one["instance_id"] for one in nodes if one["state"] == "ready"]
        return len(there) == len(NODES) and instance_id not in there

    def post_bystanders(self) -> str:
        """Start a process of the user on every node, and another job; return that job's id."""
        there = f"pgrep -fx 'sleep {BYSTANDER}' >/dev/null"
        self.phalanx("exec", "--", f"{there} || (setsid sleep {BYSTANDER} </dev/null >/dev/null 2>&1 &)")
        arguments = ("run", "--detach", "--launcher", "exec", "--name", "bystander", "--directory", str(self.code))
        job_id = self.phalanx(*arguments, "--", "sleep", BYSTANDER_JOB).stdout.strip()
        deadline = time.monotonic() + 60
        while set(self.bystanders().values()) != {len(NODES)}:
            if time.monotonic() > deadline:
                raise SystemExit(f"the bystanders did not start: {self.bystanders()}")
            time.sleep(0.2)
        return job_id


def is_of(seen: Seen, job_id: str, token: str) -> bool:
    """Whether this process belongs to the job."""
    return seen.job == job_id or seen.argv == ("sleep", token)


def _look_at(pid: int) -> Seen | None:
    try:
        argv = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
        if not argv:
            return None  # a zombie
        hostname = Path(f"/proc/{pid}/root/etc/hostname").read_text().strip()
        variables = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return None  # the process ended meanwhile
    job = next((one.partition("=")[2] for one in variables if one.startswith("PHALANX_JOB=")), "")
    return Seen(pid, hostname, " ".join(argv), tuple(word.rpartition("/")[2] for word in argv), job)


def parent_of(pid: int) -> int:
    """Return the parent's pid, or 0 when the process has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def verb_of(argv: tuple[str, ...]) -> tuple[str, ...]:
    """Return the verb and the job, if the process runs the runner's zipapp."""
    return argv[VERB_AT : VERB_AT + 2]


def is_runner(seen: Seen, job_id: str) -> bool:
    """Return whether this is the runner rather than its parent, which settles the job and has the same command line.

    On its way to become a daemon, the process in between leads their session, and then ends.
    """
    if not verb_of(seen.argv) == ("submit", job_id) == verb_of(argv_of(parent_of(seen.pid))):
        return False
    try:
        return not Path("/proc", str(os.getsid(seen.pid))).exists()
    except ProcessLookupError:
        return False


def argv_of(pid: int) -> tuple[str, ...]:
    """Return the base names in a process's command line."""
    seen = _look_at(pid)
    return seen.argv if seen else ()


def _kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True
