"""The cluster that the soak test breaks: jobs, bystanders, faults and what is left, as its user sees them."""

from __future__ import annotations

import json
import shlex
import subprocess
import time
import urllib.request
from typing import Any

from benchmarks.cluster import BenchCluster
from benchmarks.measure import PHALANX

NODES = tuple(f"deeplearning-worker{number}" for number in range(1, 5))
BYSTANDER = "86399"  # `sleep` of the user's own, on every node
BYSTANDER_JOB = "86398"

# Prints, computes nothing, and leaves a child that has thrown off mark, session and parent.
RANK = """import os, subprocess, sys, time
subprocess.Popen(["env", "-i", "setsid", "sleep", sys.argv[1]])
while True:
    print("at work", flush=True)
    time.sleep(0.1)
"""

# On the victim's node, until there is one or 20 s have passed: kill it and say when. Words are those that its command
# line begins with, or has from its second or third word on (an interpreter and its options come first).
KILL = """import os, sys, time
mark, words = sys.argv[1].encode(), sys.argv[2:]
def victims():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            env = open(f"/proc/{pid}/environ", "rb").read().split(b"\\0")
            line = open(f"/proc/{pid}/cmdline", "rb").read().decode(errors="replace").split("\\0")
        except OSError:
            continue
        line = [os.path.basename(word) for word in line]
        if (mark in env or not mark) and any(line[n:n + len(words)] == words for n in range(3)):
            yield int(pid)
deadline = time.monotonic() + 20
while time.monotonic() < deadline:
    for pid in victims():
        os.kill(pid, 9)
        print(time.time())
        sys.exit()
    time.sleep(0.02)
"""

# What is left of a job on a node, by its mark and by what its ranks' children sleep for.
LEFT = """for p in /proc/[0-9]*; do
  line=$(tr '\\0' ' ' <$p/cmdline 2>/dev/null)
  case $line in "sleep {token} ") echo "$line"; continue;; esac
  ! grep -qz '^PHALANX_JOB={job}$' $p/environ 2>/dev/null || echo "$line"
done"""


class SoakCluster:
    """A BenchCluster with what trials need; commands' output comes back as text."""

    def __init__(self, bench: BenchCluster) -> None:
        self.bench = bench
        self.code = bench.directory / "code"
        self.code.mkdir()
        (self.code / "rank.py").write_text(RANK)

    def phalanx(self, *arguments: str, timeout_s: float = 90) -> subprocess.CompletedProcess[str]:
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
        """A command line in the background, as a terminal runs it; its output is read by `communicate`."""
        return subprocess.Popen(
            [PHALANX, *arguments],
            cwd=self.bench.directory,
            env=self.bench.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def on(self, node: str, command: str, timeout_s: float = 60) -> str:
        """Standard output of a command on a node, over the head; "" when it can't be reached."""
        if node != NODES[0]:
            command = f"ssh -o ConnectTimeout=5 {node} {shlex.quote(command)}"
        return self.phalanx("ssh", "head", "--", command, timeout_s=timeout_s).stdout

    def kill(self, node: str, mark: str, *words: str) -> float | None:
        """When a process whose command line has these words was killed; None when there was none."""
        said = self.on(node, shlex.join(["python3", "-c", KILL, mark, *words]))
        return float(said) if said.strip() else None

    def fault(self, document: dict[str, Any]) -> None:
        endpoint = json.loads((self.bench.state / "local" / "endpoint.json").read_text())
        request = urllib.request.Request(
            endpoint["url"] + "/_localcloud/faults",
            method="POST",
            data=json.dumps(document).encode(),
            headers={"X-Localcloud-Key": endpoint["secret_access_key"]},
        )
        urllib.request.urlopen(request, timeout=10).close()

    def instance(self, node: str) -> str:
        nodes = json.loads(self.phalanx("nodes", "--json").stdout)
        return next(one["instance_id"] for one in nodes if one["name"] == node)

    def job(self, job_id: str) -> dict[str, Any]:
        """The job as `phalanx jobs --json` tells it; {} when that can't be asked."""
        done = self.phalanx("jobs", "--json")
        jobs = json.loads(done.stdout) if done.returncode == 0 and done.stdout.strip() else []
        return next((job for job in jobs if job["id"] == job_id), {})

    def newest(self) -> str:
        jobs = json.loads(self.phalanx("jobs", "--json").stdout or "[]")
        return jobs[0]["id"] if jobs else ""

    def left_of(self, job_id: str, token: str) -> dict[str, str]:
        """Node → command lines of the job's processes there; a node that can't be asked is named so."""
        look = LEFT.format(job=job_id, token=token) + "\necho asked"
        said = {node: self.on(node, look) for node in NODES}
        return {
            node: text.removesuffix("asked\n") or "could not be asked"
            for node, text in said.items()
            if text != "asked\n"
        }

    def heal(self, timeout_s: float = 90) -> bool:
        """Wait until every node can be logged in to by its name."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if all(self.on(node, "echo yes", 30) == "yes\n" for node in NODES):
                return True
            time.sleep(0.5)
        return False

    def post_bystanders(self) -> str:
        """A process of the user's own on every node, and another job; returns that job's id."""
        for node in NODES:
            self.on(
                node,
                f"pgrep -fx 'sleep {BYSTANDER}' >/dev/null || (setsid sleep {BYSTANDER} </dev/null >/dev/null 2>&1 &)",
            )
        words = ("run", "--detach", "--launcher", "exec", "--name", "bystander", "--directory", str(self.code))
        return self.phalanx(*words, "--", "sleep", BYSTANDER_JOB).stdout.strip()

    def missing_bystanders(self, besides: str | None) -> list[str]:
        """Nodes (but the one that was broken) on which the user's process or the other job's is gone."""
        look = f"pgrep -fx 'sleep {BYSTANDER}' >/dev/null && pgrep -fx 'sleep {BYSTANDER_JOB}' >/dev/null && echo both"
        if besides:
            look = f"pgrep -fx 'sleep {BYSTANDER}' >/dev/null && echo both"  # the other job ends with that node, too
        return [node for node in NODES if node != besides and self.on(node, look) != "both\n"]
