"""A real four-node cluster for the tests marked `cluster`: brought up once, through the CLI, and taken down."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import forked_cli
import pytest
from processes import Process, descendants, identified, wait_until_gone
from shared import SHARED

from phalanx.jobs.environments import recipe

PHALANX = Path(sys.executable).parent / "phalanx"
EXAMPLES = Path(__file__).parents[2] / "examples"
# The recipes' environments, kept between runs of the tests like .venv itself: making them all takes minutes.
MADE = Path(sys.prefix) / "recipes"
# What a command shows of a wait that takes long.
WAITS = re.compile(r"^waiting for .*\([\d.]+ s\)\n", re.MULTILINE)
# The nodes share this machine's cores, and OpenMP's threads spin while they wait for each other.
ONE_THREAD = ("--env", "OMP_NUM_THREADS=1")
SPEC = "name: contract\ncloud: local\nnodes: 4\nmin: 4\ntype: c5.large\nshared: /efs\nkeep: no\n"
ENGINES = SPEC.replace("name: contract", "name: engines") + "slots: 8\n"


@dataclass(frozen=True)
class Terminal:
    """A user's shell in a directory with a phalanx.yaml and a separate state directory."""

    directory: Path
    state: Path

    def phalanx(self, *arguments: str, timeout_s: float = 300, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run `phalanx …`; with `check`, a failure fails the test and shows the output.

        The errors are without what the command waited for, which depends on this machine's load.
        """
        env = {**os.environ, "PHALANX_STATE_DIR": str(self.state)}
        done = forked_cli.run([str(PHALANX), *arguments], self.directory, env, timeout_s)
        done.stderr = WAITS.sub("", done.stderr)
        if check:
            shown = f"phalanx {' '.join(arguments)} → {done.returncode}\n{done.stdout}\n{done.stderr}"
            assert done.returncode == 0, shown
        return done

    def beside(self, name: str, text: str) -> Terminal:
        """Return a terminal in the directory of another phalanx.yaml, with the same local cloud."""
        directory = self.directory.parent / name
        directory.mkdir(exist_ok=True)
        (directory / "phalanx.yaml").write_text(text)
        return Terminal(directory, self.state)

    def start(
        self,
        *arguments: str,
        output: IO[str] | int = subprocess.PIPE,
        errors: int | None = subprocess.STDOUT,
        **env: str,
    ) -> subprocess.Popen[str]:
        """Start `phalanx …` with additional variables, without waiting for it."""
        variables = {**os.environ, "PHALANX_STATE_DIR": str(self.state), **env}
        return forked_cli.start([str(PHALANX), *arguments], self.directory, variables, output, errors)

    def on(self, node: str, command: str, timeout_s: float = 300, check: bool = True) -> str:
        """Run `command` in a shell on a node, as the job user; return its standard output."""
        return self.phalanx("ssh", node, "--", command, timeout_s=timeout_s, check=check).stdout

    def typed(self, script: str, home: Path | None = None, **env: str) -> str:
        """Run lines for bash as a user types them, at home (default: in this directory); return all that they show."""
        path = f"{PHALANX.parent}:{os.environ['PATH']}"
        done = subprocess.run(
            # `down` asks on a terminal, and there is none here.
            ["bash", "-exc", script.replace("phalanx down", "phalanx down --yes --keep no")],
            cwd=home or self.directory,
            env={**os.environ, "PATH": path, "PHALANX_STATE_DIR": str(self.state), **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=900,
        )
        assert done.returncode == 0, done.stdout[-4000:]
        return done.stdout

    def with_example(self, name: str) -> Terminal:
        """Return a terminal in a copy of examples/`name`, on the same cluster."""
        directory = self.state.parent / name
        shutil.copytree(EXAMPLES / name, directory, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(self.directory / "phalanx.yaml", directory)
        return Terminal(directory, self.state)

    def wait_until_printed(self, job: str, pattern: str, times: int = 1, timeout_s: float = 300) -> None:
        """Wait until lines of the output match `times` times, in one `logs -f`: polling would start many processes."""
        with self.start("logs", "-f", job) as following:
            late = threading.Timer(timeout_s, following.kill)
            late.start()
            assert following.stdout
            shown: list[str] = []
            for line in following.stdout:
                shown.append(line)
                times -= bool(re.search(pattern, line))
                if times == 0:
                    break
            late.cancel()
            following.kill()
        assert times == 0, "".join(shown)

    def local_cloud_processes(self) -> set[Process]:
        """Return the local cloud's process and its descendants, including the nodes'; empty when it is not running."""
        endpoint = self.state / "local" / "endpoint.json"
        return identified(descendants(json.loads(endpoint.read_text())["pid"])) if endpoint.exists() else set()


def read_until(process: subprocess.Popen[str], text: str, times: int = 1) -> str:
    """Return the output up to the line that is one of so many with this text, because a slow command prints more."""
    assert process.stdout
    shown: list[str] = []
    while sum(text in line for line in shown) < times:
        shown.append(process.stdout.readline())
        assert shown[-1], f"the output ended without {text!r}:\n{''.join(shown)}"
    return "".join(shown)


def assert_nothing_is_left(terminal: Terminal, processes: set[Process]) -> None:
    there = json.loads(terminal.phalanx("local", "status", "--json").stdout)
    assert not there["running"] or not there["stacks"], f"stacks keep the local cloud running: {there['stacks']}"
    left, log = wait_until_gone(processes), terminal.state / "local/localcloud.log"
    last = log.read_text(errors="replace")[-4000:] if log.exists() else ""
    assert not left, f"processes of the local cloud outlive `phalanx down`: {left}\n{last}"
    assert not list(terminal.state.rglob("endpoint.json"))
    assert not [path for path in terminal.state.rglob("*") if path.is_socket()]
    assert str(terminal.state) not in Path("/proc/self/mounts").read_text()


def make_terminal(spec: str) -> Terminal:
    """Make a terminal in a short path: addresses of Unix sockets have at most 107 bytes."""
    root = Path(tempfile.mkdtemp(prefix="phx-"))
    directory = root / "project"
    directory.mkdir()
    (directory / "phalanx.yaml").write_text(spec)
    return Terminal(directory, root / "state")


def shared_of(terminal: Terminal) -> Path:
    """Return the directory on this machine that a cluster's nodes share, also where its local cloud has others."""
    (mounted,) = re.findall(r"^(fs-\w+)\S* /efs ", terminal.on("head", "cat /etc/fstab"), re.MULTILINE)
    return terminal.state / "local" / "efs" / mounted


def environments_of(terminal: Terminal, shared: Path | None = None) -> Path:
    """Return the directory on this machine with the environments of this terminal's only cluster, or in `shared`."""
    shared = shared or next((terminal.state / "local" / "efs").glob("fs-*/"))
    path, owner = shared / ".phalanx" / "environments", shared.stat()
    if os.geteuid() == 0:
        for made in (path.parent, path):
            made.mkdir(mode=0o700, exist_ok=True)
            os.chown(made, owner.st_uid, owner.st_gid)
    return path


def link_complete(source: Path, target: Path, having: str = ".complete") -> None:
    """Hard-link the complete environments of `source` that `target` lacks, if they have this file (default: recipes').

    Nothing is linked if the nodes' job user has its own id and we are not root: then each run makes them.
    """
    for mark in source.glob("*/.complete"):
        if mark.parent.name.startswith("requirements-") and having == mark.name:
            continue  # one test's own, which no recipe checks
        made, beside = target / mark.parent.name, target / f"{mark.parent.name}.{os.getpid()}"
        if (mark.parent / having).exists() and not made.exists():
            # Atomically.
            subprocess.run(["cp", "-al", str(mark.parent), str(beside)], check=True)
            try:
                beside.rename(made)
            except OSError:  # another run of the tests has created it
                shutil.rmtree(beside)


def drop_what_fails_its_check(terminal: Terminal, kept: Path) -> None:
    """Remove kept environments that fail their recipe's check, here and in `kept`.

    They are checked once for each Python: together, the checks import half a dozen frameworks.
    """
    for mark in environments_of(terminal).glob("*/.complete"):
        name, python = mark.parent.name, mark.parent / "bin/python"
        checked = kept / f"{name}.checked-{python.stat().st_mtime_ns if python.exists() else 0}"
        if checked.exists() or name.startswith("requirements-"):
            continue
        check = shlex.join(recipe(name.rpartition("-")[0]).environment.check)
        command = f". /efs/.phalanx/environments/{name}/bin/activate && {check}"
        if terminal.phalanx("ssh", "head", "--", command, check=False).returncode:
            shutil.rmtree(mark.parent)
            shutil.rmtree(kept / name)
        else:
            checked.touch()


@contextmanager
def a_terminal(spec: str) -> Iterator[Terminal]:
    """Yield a terminal with a separate local cloud, which is stopped in any case."""
    terminal = make_terminal(spec)
    try:
        yield terminal
    finally:
        terminal.phalanx("local", "stop", "--force", check=False)
        shutil.rmtree(terminal.state.parent, ignore_errors=True)


@contextmanager
def a_cluster(spec: str, up_s: float = 300) -> Iterator[Terminal]:
    """Bring a cluster up through the CLI, and take it down; nothing may be left afterwards."""
    with a_terminal(spec) as terminal:
        terminal.phalanx("up", timeout_s=up_s)
        yield terminal
        processes = terminal.local_cloud_processes()
        terminal.phalanx("down", "--yes")
        assert_nothing_is_left(terminal, processes)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Terminal]:
    """Four nodes on this machine, for all tests that only inspect them or run jobs."""
    with ExitStack() as SHARED["cluster"]:
        yield SHARED["cluster"].enter_context(a_cluster(SPEC))


@pytest.fixture(scope="session")
def engines() -> Iterator[Terminal]:
    """Four nodes with eight slots each for the tests of engines, which share environments."""
    with ExitStack() as SHARED["engines"]:
        terminal = SHARED["engines"].enter_context(a_cluster(ENGINES))
        MADE.mkdir(exist_ok=True)
        link_complete(MADE, environments_of(terminal))
        drop_what_fails_its_check(terminal, MADE)
        SHARED["engines"].callback(lambda: link_complete(environments_of(terminal), MADE))
        yield terminal
