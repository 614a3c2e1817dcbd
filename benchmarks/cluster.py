"""A local cluster (four nodes by default) with its own state directory, where no local cloud runs yet."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.measure import PHALANX, descendants, environment, seconds

SPEC = "name: bench\ncloud: local\nnodes: {nodes}\nmin: {nodes}\ntype: c5.large\nslots: {slots}\nkeep: no\n"


class BenchCluster:
    """A cluster whose phalanx.yaml is in `directory`; `up` and `down` return the seconds that the commands took."""

    def __init__(self, root: Path, nodes: int = 4, slots: int = 2) -> None:
        # Separate directories, because every `run` sends the project as its code.
        self.directory, self.state = root / "project", root / "state"
        self.directory.mkdir()
        (self.directory / "phalanx.yaml").write_text(SPEC.format(nodes=nodes, slots=slots))

    def phalanx(self, *arguments: str) -> float:
        return seconds([PHALANX, *arguments], cwd=self.directory, env=self.environment())

    def environment(self) -> dict[str, str]:
        return environment(PHALANX_STATE_DIR=str(self.state))

    def up(self) -> float:
        return self.phalanx("up")

    def down(self) -> float:
        return self.phalanx("down", "--yes")

    def on_head(self, command: str, timeout_s: float = 60) -> str:
        return self.output("ssh", "head", "--", command, timeout_s=timeout_s)

    def output(self, *arguments: str, timeout_s: float) -> str:
        """Run `phalanx …`, which must succeed, and return what it prints."""
        done = subprocess.run(
            [PHALANX, *arguments],
            cwd=self.directory,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
        if done.returncode:
            raise SystemExit(f"phalanx {' '.join(arguments)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return done.stdout

    def show(self, output: Path, *arguments: str, timeout_s: float = 150) -> None:
        """Run a command with its output in a file, as if on a terminal."""
        with output.open("wb") as stdout:
            subprocess.run(
                [PHALANX, *arguments],
                cwd=self.directory,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                timeout=timeout_s,
                check=True,
            )

    def local_cloud_pids(self) -> set[int]:
        endpoint = json.loads((self.state / "local" / "endpoint.json").read_text())
        return descendants(endpoint["pid"])


@contextmanager
def bench_cluster(nodes: int = 4, slots: int = 2) -> Iterator[BenchCluster]:
    root = Path(tempfile.mkdtemp(prefix="phx-"))
    cluster = BenchCluster(root, nodes, slots)
    try:
        yield cluster
    finally:
        argv = [PHALANX, "local", "stop", "--force"]
        subprocess.run(argv, cwd=root, env=cluster.environment(), capture_output=True, timeout=60, check=False)
        shutil.rmtree(root, ignore_errors=True)
