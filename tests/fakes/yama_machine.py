"""Look at a job's stacks under each of Yama's four rules, without the right to trace; print them as JSON.

It is process 1 of user-mode Linux, which has this machine's files.
"""

from __future__ import annotations

import ctypes
import subprocess
import time
from pathlib import Path

from fake_nodes import FakeCluster
from py_spy import bring_py_spy
from user_mode_linux import tell

from localcloud.nodes import kernel
from phalanx.errors import PhalanxError
from phalanx.jobs import rank_stacks
from phalanx.jobs.job import JobSpec, submit

_TRAIN = """
import time

def all_reduce():
    time.sleep(1000)

all_reduce()
"""
_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
_CAPBSET_DROP, _CAP_SYS_PTRACE = 24, 19
_TIMEOUT_S = 60


def _observe() -> dict[int, list[tuple[str, str]]]:
    Path("/dev/shm").mkdir()
    for kind, path in (
        ("proc", "/proc"),
        ("sysfs", "/sys"),
        ("tmpfs", "/run"),
        ("tmpfs", "/tmp"),
        ("tmpfs", "/dev/shm"),
    ):
        kernel.mount(kind, path, kind)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    # Every program that is started from now on lacks it, as one of a user who is not root.
    ctypes.CDLL(None).prctl(_CAPBSET_DROP, _CAP_SYS_PTRACE, 0, 0, 0)
    place = Path("/run/machine")
    (place / "code").mkdir(parents=True)
    (place / "code/train.py").write_text(_TRAIN)
    cluster = FakeCluster(place, slots=2)
    bring_py_spy(Path(cluster.shared))
    job = submit(cluster, JobSpec(("python", "train.py"), "exec", processes=2, directory=place / "code"), detach=True)
    return {scope: _seen(cluster, job.id, scope) for scope in range(4)}


def _seen(cluster: FakeCluster, job: str, scope: int) -> list[tuple[str, str]]:
    """Return where the ranks are, or why that is not known, once they are in their function or it is forbidden."""
    _SCOPE.write_text(str(scope))
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        try:
            seen = sorted((one.place, one.why) for one in rank_stacks.take(cluster, job).ranks)
        except PhalanxError as error:  # it has not begun
            seen = [("", error.message)]
        if len(seen) == 2 and all(place.startswith("all_reduce") or "yama" in why for place, why in seen):
            return seen
        if time.monotonic() > deadline:
            return seen
        time.sleep(0.2)


if __name__ == "__main__":
    tell(_observe)
