"""A cluster of a separate local cloud: its user's commands, its API, and the faults that can be put into it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from phalanx.errors import PhalanxError
from phalanx.local import endpoint
from phalanx.local.this_machine import LocalAws

REGION = "us-east-1"
# Whatever is installed where: the command line of this phalanx.
_PROGRAM = [sys.executable, "-c", "import sys; from phalanx.cli import main; sys.argv[0] = 'phalanx'; main()"]
_STOP_TIMEOUT_S = 60.0


class LocalCluster:
    """A user's directory with a phalanx.yaml, and a state directory whose local cloud is this cluster's alone."""

    def __init__(self, root: Path, spec: str) -> None:
        # Separate directories, because every `run` sends the project as its code.
        self.directory, self.state = root / "project", root / "state"
        self.code = self.directory / "code"
        self.code.mkdir(parents=True)
        self.file = self.directory / "phalanx.yaml"
        self.file.write_text(spec)
        self._was_ended = False

    def phalanx(self, *arguments: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
        """Run `phalanx …`, and return how it ended. Raises TimeoutExpired."""
        with self.start(*arguments) as process:
            try:
                stdout, stderr = process.communicate(timeout=timeout_s)
            except BaseException:
                process.kill()
                raise
        return subprocess.CompletedProcess(arguments, process.returncode, stdout, stderr)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start `phalanx …` in a session of its own: Ctrl-C on the terminal is not for it."""
        if self._was_ended:
            raise PhalanxError("the drill was interrupted")
        return self._start(*arguments)

    def _start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*_PROGRAM, *arguments],
            cwd=self.directory,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def begin(self) -> None:
        """Start the local cloud before any cluster, so that a fault can wait for one."""
        program = "from phalanx.local import endpoint; endpoint.begin(); endpoint.wait()"
        # Not in the user's directory, whose modules Python would find first.
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=self.directory,
            env=self._environment(),
            timeout=_STOP_TIMEOUT_S,
            check=False,
        )

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "PHALANX_STATE_DIR": str(self.state)}

    def endpoint(self) -> endpoint.Endpoint | None:
        """Return the address of the local cloud; None if it does not run."""
        return endpoint.recorded(self.state / "local")

    def api(self) -> LocalAws:
        """Return the local cloud's API, with its administrator's rights. Raises LocalCloudError if it does not run."""
        found = LocalAws(REGION)
        found.endpoint = self._running()
        return found

    def fault(self, **faults: Any) -> None:
        """Put faults into the local cloud (localcloud.daemon.faults). Raises LocalCloudError."""
        endpoint.inject(faults, self._running())

    def _running(self) -> endpoint.Endpoint:
        found = self.endpoint()
        if found is None:
            raise endpoint.NotRunning("the local cloud does not run")
        return found

    def machines(self, role: str) -> list[str]:
        """Return the ids of the instances of the group of this role, head or workers, that run."""
        chosen = [
            {"Name": "tag:aws:autoscaling:groupName", "Values": [f"*-{role}"]},
            {"Name": "instance-state-name", "Values": ["running"]},
        ]
        found = self.api().pages("ec2", "describe_instances", "Reservations", Filters=chosen)
        return [one["InstanceId"] for group in found for one in group["Instances"]]

    def made(self, logical_id: str) -> str:
        """Return the physical id of a resource of the only stack; "" if it is not made yet."""
        api = self.api()
        for stack in api.call("cloudformation", "describe_stacks")["Stacks"]:
            listed = api.call("cloudformation", "list_stack_resources", StackName=stack["StackId"])
            for one in listed["StackResourceSummaries"]:
                if (one["LogicalResourceId"], one["ResourceStatus"]) == (logical_id, "CREATE_COMPLETE"):
                    return one["PhysicalResourceId"]
        return ""

    def processes(self) -> dict[int, str]:
        """Return the local cloud's processes with their starts, its nodes' included; none if it does not run."""
        found = self.endpoint()
        known = {pid: started(pid) for pid in _descendants(found.pid)} if found else {}
        return {pid: start for pid, start in known.items() if start}

    def log(self) -> str:
        """Return the local cloud's log."""
        log = self.state / "local" / "localcloud.log"
        return log.read_text(errors="replace") if log.exists() else ""

    def stop(self) -> None:
        """End the local cloud with all that it runs."""
        with self._start("local", "stop", "--force") as stopping:
            with contextlib.suppress(subprocess.TimeoutExpired):
                stopping.communicate(timeout=_STOP_TIMEOUT_S)
            stopping.kill()

    def end(self) -> None:
        """End it for good, from another thread: no command runs after this one."""
        self._was_ended = True
        self.stop()


@contextmanager
def local_cluster(spec: str) -> Iterator[LocalCluster]:
    """Yield a cluster that is not up yet; at the end, nothing of it stays on this machine."""
    # A short path: addresses of Unix sockets have at most 107 bytes.
    root = Path(tempfile.mkdtemp(prefix="phx-"))
    cluster = LocalCluster(root, spec)
    try:
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(root, ignore_errors=True)


def reason(stderr: str) -> str:
    """Return the error itself, without the events before it and the boot logs after it."""
    return stderr.rpartition("error: ")[2].partition("\n---")[0].strip()[:500]


def listed(output: str) -> list[dict[str, Any]]:
    """Read what `--json` printed; nothing if the command failed."""
    return json.loads(output) if output.startswith("[") else []


def started(pid: int) -> str:
    """Return when a process was started, which tells it from a later one with its number; "" if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def _descendants(root: int) -> set[int]:
    parent = {int(entry.name): _parent(entry) for entry in Path("/proc").glob("[0-9]*")}
    found = {root} & parent.keys()
    while grown := {pid for pid in parent if parent[pid] in found} - found:
        found |= grown
    return found


def _parent(process: Path) -> int:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:  # it ended meanwhile
        return 0
