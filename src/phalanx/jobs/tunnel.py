"""Forwards ports of a node to this machine, and runs programs such as TensorBoard for as long as the forward."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, Any

from phalanx.errors import ClusterError, PhalanxError
from phalanx.jobs import toolbox
from phalanx.jobs.job import ClusterAccess, Job
from phalanx.jobs.relay import Relay
from phalanx.node import validate
from phalanx.runner.verbs.service import PORT
from phalanx.ssh import head_answers
from phalanx.ssh.bounded import file_without_name
from phalanx.ssh.reading import Reader
from phalanx.ssh.remote import Remote, control_directory
from phalanx.waits import waiting

_READ_BYTES = 1 << 16
# Some ten thousand refusals.
_MOST_SAID_BYTES = 1 << 20
_READY_TIMEOUT_S = 30.0
_START_TIMEOUT_S = 120.0
# More than the deadlines of the sweep on the head.
_END_TIMEOUT_S = 20.0


def _report(value: Any) -> dict[str, tuple[str, ...]]:
    return validate.fields(_REPORT, value)


_TEXTS = head_answers.list_of(head_answers.text)
_REPORT: dict[str, head_answers.Check] = {"killed": _TEXTS, "left": _TEXTS}
_ENDED: dict[str, head_answers.Check] = {
    "ended": head_answers.optional(head_answers.exit_code),
    "tail": _TEXTS,
    "report": _report,
}
_ANSWER: dict[str, head_answers.Check] = {
    **_ENDED,
    "port": head_answers.port,
    "missing": head_answers.text,
    "path": head_answers.text,
}


class PortTakenError(PhalanxError):
    """Another program on this machine listens on the port."""

    code = "port-taken"


@dataclass(frozen=True)
class Program:
    """What a Service runs on the head. `{port}` in argv becomes a free port; `env` is never put on a command line."""

    name: str
    argv: tuple[str, ...]
    needs: str
    env: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Ended:
    """How a program ended: by itself with `status`, or by us (None), and what became of its processes."""

    status: int | None
    tail: tuple[str, ...]
    killed: int
    left: tuple[str, ...]


def tensorboard(logdir: str) -> Program:
    """Describe TensorBoard for a directory on the cluster."""
    argv = ("tensorboard", "--logdir", logdir, "--host", "127.0.0.1", "--port", PORT)
    return Program("tensorboard", argv, "tensorboard")


def notebook(directory: str, token: str, host: str, as_root: bool = False) -> Program:
    """Describe JupyterLab, or else the classic notebook or the bare server, in a directory on the cluster.

    It answers requests to `host`, and to addresses of loopback.
    """
    flags = ["--no-browser", "--ServerApp.ip=127.0.0.1", f"--ServerApp.port={PORT}", "--ServerApp.port_retries=0"]
    flags += [f"--ServerApp.local_hostnames={host}", f"--ServerApp.root_dir={directory}"]
    flags += ["--allow-root"] * as_root
    choose = 'for it in lab notebook server; do command -v jupyter-$it >/dev/null && break; done; exec jupyter $it "$@"'
    return Program("notebook", ("sh", "-c", choose, "notebook", *flags), "jupyter", {"JUPYTER_TOKEN": token})


def require_free(port: int) -> None:
    """Raise PortTakenError if the port is in use on this machine."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise _taken(port, error) from error


def _taken(port: int, error: OSError) -> PortTakenError:
    return PortTakenError(
        f"port {port} of this machine is not available: {error.strerror}",
        "Choose another port: `phalanx forward 18888:8888`, or `--port 18888` with tensorboard and notebook.",
    )


@contextmanager
def forward(remote: Remote, local_port: int, port: int, host: str) -> Iterator[subprocess.Popen[bytes]]:
    """Forward 127.0.0.1:local_port to the node's 127.0.0.1:port, or else its [::1]:port, within the block.

    Raises ClusterError, PortTakenError.

    Browsers are sent to `host` (jobs.relay).
    """
    require_free(local_port)
    with (
        file_without_name() as said,
        tempfile.TemporaryDirectory(dir=control_directory()) as place,
        remote.forward(f"{place}/node", port, said) as process,
    ):
        try:
            if b"ready" not in (Reader(process.stdout).line(_READY_TIMEOUT_S) or b""):
                raise ClusterError(
                    f"port {local_port} can't be forwarded to {remote.host}: {_text(said)}", code="port-not-forwarded"
                )
            with contextlib.closing(_relay(local_port, f"{place}/node", host, lambda: _refusals(said))):
                yield process
        finally:
            process.kill()


def _refusals(said: IO[bytes]) -> int:
    """Return how many connections the node has refused, by what ssh says."""
    return os.pread(said.fileno(), _MOST_SAID_BYTES, 0).count(b"open failed: connect failed")


def _relay(local_port: int, path: str, host: str, refusals: Callable[[], int]) -> Relay:
    try:
        return Relay(local_port, path, host, refusals)
    except OSError as error:
        raise _taken(local_port, error) from error


def answers(local_port: int, within_s: float = 3.0) -> bool:
    """Whether anything listens at the other end: ssh takes any connection, and closes it when the node refuses."""
    try:
        with socket.create_connection(("127.0.0.1", local_port), timeout=within_s) as probe:
            return bool(probe.recv(1))
    except TimeoutError:
        return True  # it waits for us to speak first
    except OSError:
        return False


class Service:
    """A program on the head. It ends with `end`, which returns proof, or with this process.

    `job`: it runs in this job's environment, if that has one.
    """

    def __init__(self, cluster: ClusterAccess, program: Program, job: Job | None = None) -> None:
        self._program = program
        self._said = file_without_name()
        name = f"{program.name}-{secrets.token_hex(4)}"
        toolbox.ready(cluster.remote(), cluster.shared)
        place = job.directory if job else ""
        command = toolbox.command(cluster.shared, "service", name, program.needs, place, *program.argv)
        pipe = subprocess.PIPE
        self._process = cluster.remote().popen(command, stdin=pipe, stdout=pipe, stderr=self._said)
        self._output = Reader(self._process.stdout)

    def start(self) -> int:
        """Start the program and return its port on the head. Raises ClusterError when it is missing or ends at once."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(dict(self._program.env)).encode() + b"\n")
        self._process.stdin.flush()
        answer = self._answer(_START_TIMEOUT_S)
        if "port" in answer:
            return answer["port"]
        needs = self._program.needs
        if "missing" in answer:
            raise ClusterError(
                f"'{needs}' is not on the head (PATH {answer.get('path', '?')})", _install(needs), code="no-program"
            )
        tail = "\n".join(answer.get("tail", ())) or _text(self._said)
        raise ClusterError(
            f"{self._program.name} did not start on the head: {tail or 'it does not answer'}", code="not-started"
        )

    def ended(self) -> bool:
        """Whether the program has ended by itself."""
        return self._output.ready(0)

    def end(self) -> Ended:
        """End the program and return the proof. Raises ClusterError when the head does not report it."""
        assert self._process.stdin is not None
        if not self._process.stdin.closed:
            self._process.stdin.close()
        answer = self._answer(_END_TIMEOUT_S)
        if not _ENDED.keys() <= answer.keys():
            name = self._program.name
            raise ClusterError(
                f"the head did not report that {name} has ended: {_text(self._said) or 'no answer'}", code="not-ended"
            )
        return Ended(answer["ended"], answer["tail"], len(answer["report"]["killed"]), answer["report"]["left"])

    def close(self) -> None:
        """Close the connection; the head ends what is left of the program."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._said):
            assert pipe is not None
            pipe.close()

    def _answer(self, timeout_s: float) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_s
        with waiting(f"{self._program.name} on the head"):
            return self._answer_before(deadline)

    def _answer_before(self, deadline: float) -> dict[str, Any]:
        while (line := self._output.line(deadline - time.monotonic())) is not None:
            if line.startswith(b"{"):
                return head_answers.fields(head_answers.parsed(line), _ANSWER)
        return {}


def _install(program: str) -> str:
    package = {"jupyter": "jupyterlab"}.get(program, program)
    return f"Put `{package}` into a job's requirements.txt and name that job, or install it in `boot:` of phalanx.yaml."


def _text(said: IO[bytes]) -> str:
    said.seek(0)
    return said.read(_READ_BYTES).decode(errors="replace").strip()[-2000:]
