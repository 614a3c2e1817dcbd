"""Run `phalanx …` in processes that are forked from one with all its modules, instead of starting Python each time.

Loading the modules takes most of a short command's CPU time, and the tests run thousands of commands. The local cloud
that a forked command starts is forked, too: from a process with moto's modules, which take 0.7 s.
`Terminal.phalanx` and `Terminal.start` fork. `Terminal.typed` and tests of the process itself execute the program.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import pkgutil
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

# What Python, the loader or the locale read before the first line of a program: a forked process would not see it.
_READ_AT_THE_START = ("PYTHON", "LD_", "LC_", "LANG", "MALLOC_")
_SERVICES = (
    *("autoscaling", "cloudformation", "dynamodb", "ec2", "efs", "emr", "events", "fsx", "iam", "lambda", "logs"),
    *("resourcegroupstaggingapi", "s3", "service-quotas", "sns", "sqs", "ssm", "sts"),
)
_FIRST = dict(os.environ)
# As phalanx.local.isolated.program starts Python, and where its command line has the local cloud's arguments.
_OPTIONS = {"phalanx": (), "localcloud": ("-I",)}
_ARGUMENTS_AT = 4
_REQUEST_BYTES = 1 << 18


def run(argv: list[str], cwd: Path, env: Mapping[str, str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run the program without input, as `subprocess.run` does."""
    pipe = subprocess.PIPE
    return _completed(start(argv, cwd, env, pipe, pipe), timeout_s)


def start(
    argv: list[str], cwd: Path, env: Mapping[str, str], stdout: IO[str] | int | None, stderr: int | None
) -> subprocess.Popen[str]:
    """Start the program without input, as `subprocess.Popen` does, which is used where the environment is Python's."""
    kind = _Forked if _early(env) == _early(_FIRST) else subprocess.Popen
    null = subprocess.DEVNULL
    return kind(argv, cwd=cwd, env=dict(env), stdin=null, stdout=stdout, stderr=stderr, text=True)


def _completed(process: subprocess.Popen[str], timeout_s: float | None) -> subprocess.CompletedProcess[str]:
    with process:
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def _early(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(_READ_AT_THE_START)}


@functools.cache
def _parent(program: str) -> _Parent:
    return _Parent(program)


class _Parent:
    """The process with a program's modules, as those see it who ask for children. It ends when they do."""

    def __init__(self, program: str) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        argv = [sys.executable, *_OPTIONS[program], __file__, program, str(theirs.fileno())]
        self._process = subprocess.Popen(
            argv, env=_FIRST, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], cwd="/"
        )
        theirs.close()
        atexit.register(self._end, os.getpid())

    def ask(self, wish: dict[str, object], descriptors: list[int]) -> None:
        """Ask for a process with these outputs, which tells its end to the last descriptor."""
        passed = array.array("i", descriptors).tobytes()
        self._socket.sendmsg([json.dumps(wish).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, passed)])

    def _end(self, owner: int) -> None:
        self._socket.close()
        if os.getpid() == owner:
            self._process.wait(timeout=60)


class _Forked(subprocess.Popen[str]):
    """A process that is another one's child: only how it starts, and how its end is learned, differs from Popen.

    These are private methods of Popen, the same from Python 3.10 to 3.13.
    """

    program = "phalanx"

    def _execute_child(self, argv, _executable, _preexec, _close, _pass, cwd, env, _info, _flags, _shell, *more):
        _, _, _, out, _, err, *_ = ends = more[:6]
        self._answers, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        wish = {"argv": argv, "cwd": str(cwd), "env": env or dict(os.environ), "umask": _umask(), "session": more[11]}
        with theirs:
            _parent(self.program).ask(wish, [1 if out == -1 else out, 2 if err == -1 else err, theirs.fileno()])
        self._close_pipe_fds(*ends)
        self.pid, _ = self._answer()
        self._child_created = True

    def _answer(self) -> list[int]:
        data = self._answers.recv(64)
        if not data:
            raise RuntimeError(f"the process that runs {self.program} has ended")
        return [int(word) for word in data.split()]

    def _internal_poll(self, _deadstate: int | None = None) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._wait(0)
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        # Without the lock: another thread may end the process meanwhile, and asks first whether it runs.
        if self.returncode is None:
            ready = select.poll()
            ready.register(self._answers, select.POLLIN)
            if not ready.poll(None if timeout is None else max(0, timeout) * 1000):
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
        with self._waitpid_lock:
            if self.returncode is None:
                with self._answers:
                    self.returncode = os.waitstatus_to_exitcode(self._answer()[1])
        return self.returncode


class _ForkedCloud(_Forked):
    program = "localcloud"


class _Clouds:
    """What a forked command has in place of the module `subprocess` where it starts `localcloud …`."""

    def __getattr__(self, name: str) -> Any:
        return getattr(subprocess, name)

    def Popen(self, argv: list[str], **settings: Any) -> subprocess.Popen[Any]:
        return _ForkedCloud(argv, **settings)

    def run(self, argv: list[str], *, capture_output: bool, timeout: float, check: bool, **settings: Any) -> Any:
        pipe = subprocess.PIPE
        assert capture_output and not check
        return _completed(_ForkedCloud(argv, stdout=pipe, stderr=pipe, **settings), timeout)


def _umask() -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("Umask:"))
    return int(line.split()[1], 8)


# From here on: the process with the modules.


def _serve(program: str, control: socket.socket) -> None:
    load, main = {"phalanx": (_load, _phalanx), "localcloud": (_load_cloud, _localcloud)}[program]
    if program == "phalanx":
        # Before the first fork, so that all commands share it.
        _parent("localcloud")
    select.select([control], [], [])
    load()
    assert threading.active_count() == 1
    gc.collect()
    gc.freeze()
    woken, wakes = socket.socketpair()
    for one in (woken, wakes):
        one.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
    running: dict[int, socket.socket] = {}
    with selectors.DefaultSelector() as ready:
        ready.register(control, selectors.EVENT_READ)
        ready.register(woken, selectors.EVENT_READ)
        while True:
            events = [key.fileobj for key, _ in ready.select()]
            if woken in events:
                woken.recv(4096)
            _report_ends(running)
            if control in events:
                data, descriptors, _, _ = socket.recv_fds(control, _REQUEST_BYTES, 3)
                if not data:
                    signal.set_wakeup_fd(-1)
                    return
                answers = socket.socket(fileno=descriptors[2])
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    ready.close()
                    for one in (control, woken, wakes, answers, *running.values()):
                        one.close()
                    _become(main, json.loads(data), descriptors[:2])
                for one in descriptors[:2]:
                    os.close(one)
                running[pid] = answers
                _tell(answers, pid, -1)


def _load() -> None:
    import botocore.loaders

    from phalanx import cli

    for package in ("phalanx.cli", "phalanx.aws", "phalanx.local", "phalanx.cluster", "phalanx.jobs"):
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}."):
            importlib.import_module(module.name)
    for name in ("phalanx.clouds", "botocore.session", "botocore.signers", "rich.console"):
        importlib.import_module(name)
    assert callable(cli.main)
    # Each process would parse the models of its services.
    loader = botocore.loaders.JSONFileLoader
    parsed = functools.cache(functools.partial(loader.load_file, loader()))
    loader.load_file = lambda _self, path: parsed(path)
    sessions = importlib.import_module("botocore.session").Session()
    for service in _SERVICES:
        keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x"}
        sessions.create_client(service, region_name="us-east-1", **keys)


def _phalanx() -> None:
    from phalanx import cli
    from phalanx.local import endpoint

    endpoint.subprocess = _Clouds()
    cli.main()


def _load_cloud() -> None:
    from localcloud.__main__ import forget_users_settings

    # moto reads them at its import.
    forget_users_settings()
    from localcloud.api import moto_setup

    moto_setup.load()
    for name in ("api.app", "api.http", "daemon.control", "daemon.lifecycle", "daemon.probe", "daemon.server"):
        importlib.import_module(f"localcloud.{name}")
    for name in ("ec2.imds", "images.command", "network.dialer", "network.sessions", "nodes.start"):
        importlib.import_module(f"localcloud.{name}")
    moto_setup.load_services()


def _localcloud() -> None:
    from moto.moto_api._internal import mock_random

    from localcloud.__main__ import main

    # Unlike Python's own generator, which is seeded in each process.
    mock_random.seed()
    sys.exit(main(sys.argv[_ARGUMENTS_AT:]))


def _report_ends(running: dict[int, socket.socket]) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with running.pop(pid) as answers:
            _tell(answers, pid, status)


def _tell(answers: socket.socket, pid: int, status: int) -> None:
    with contextlib.suppress(OSError):  # nobody waits for it any more
        answers.send(f"{pid} {status}".encode())


def _become(main: Callable[[], None], asked: dict, outputs: list[int]) -> None:
    """Be the program: in this directory and environment, with these outputs, until its end."""
    for number, descriptor in enumerate(outputs, 1):
        os.dup2(descriptor, number)
        os.close(descriptor)
    # The parent's own know where in a file they were.
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - as long as the process
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    if asked["session"]:
        os.setsid()
    os.umask(asked["umask"])
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    sys.argv[:] = asked["argv"]
    gc.enable()
    status = 1
    try:
        main()
    except SystemExit as ending:
        status = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except OSError:
        status = 120
    os._exit(status)


if __name__ == "__main__":
    _serve(sys.argv[1], socket.socket(fileno=int(sys.argv[2])))
