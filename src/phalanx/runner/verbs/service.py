"""Runs one program with a port on the head (TensorBoard, Jupyter) until the client closes stdin.

It prints lines of JSON: {"missing"}, {"port"} once the port answers, and finally {"ended", "tail", "report"}.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import time
from collections import deque
from typing import Any, Deque, Dict, List, Optional

from phalanx.runner.environments.environment import RESULT, is_complete, lock
from phalanx.runner.loop import READ_BYTES, Loop
from phalanx.runner.reaper import Sweep
from phalanx.runner.starter.check import which
from phalanx.runner.system import ENVIRONMENT, MARK, activated, adopt_orphans, reap, spawn

PORT = "{port}"
_LOOK_EVERY_S = 0.1
_TAIL_LINES = 20


def serve(name: str, needs: str, job_directory: str, argv: List[str]) -> int:
    """Run argv, with "{port}" replaced by a free port, if `needs` is there. stdin's first line is JSON with variables.

    It runs in the environment of the job in this directory ("": none), if that has one.
    """
    env = {**os.environ, **json.loads(os.read(0, READ_BYTES)), MARK: name}
    # Where `pip install --user` puts programs: no login shell has added it to PATH here.
    env["PATH"] = f"{env.get('PATH', os.defpath)}{os.pathsep}{os.path.expanduser('~/.local/bin')}"
    environment = _environment_of(job_directory)
    if environment:
        env = activated({**env, ENVIRONMENT: environment})
    if which(needs, os.getcwd(), env["PATH"]) is None:
        _print({"missing": needs, "path": env["PATH"]})
        return 127
    port = _free_port()
    _Service(name, [word.replace(PORT, str(port)) for word in argv], env, port).run()
    return 0


def _environment_of(job_directory: str) -> str:
    """Return the environment's path, locked as long as this process lives; "" when there is none."""
    try:
        with open(os.path.join(job_directory, RESULT)) as file:
            result = json.load(file)
        path, kept = result["path"], result["kept"]
        return path if is_complete(path) and lock(kept, fcntl.LOCK_SH) is not None else ""
    except (OSError, ValueError, LookupError, TypeError):  # the job may have written anything
        return ""


class _Service:
    def __init__(self, name: str, argv: List[str], env: Dict[str, str], port: int) -> None:
        self._name = name
        self._port = port
        self._ready = False
        self._ended: Optional[int] = None
        self._left_alone = False
        self._tail: Deque[str] = deque(maxlen=_TAIL_LINES)
        self._loop = Loop()
        adopt_orphans()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, lambda *_: self._let_go())
        self._start(argv, env)

    def run(self) -> None:
        while self._ended is None and not self._left_alone:
            self._loop.turn(_LOOK_EVERY_S)
            self._look()
        report = self._sweep()
        _print({"ended": self._ended, "tail": list(self._tail), "report": report})

    def _start(self, argv: List[str], env: Dict[str, str]) -> None:
        out_read, out_write = os.pipe()
        null = os.open(os.devnull, os.O_RDWR)
        self._pid = spawn(argv, env, (null, out_write, out_write), die_with_parent=True)
        os.close(out_write)
        self._loop.watch(out_read, self._read)
        self._loop.watch(0, self._hear)

    def _read(self, fd: int) -> None:
        data = os.read(fd, READ_BYTES)
        if not data:
            self._loop.forget(fd)
        self._tail.extend(data.decode(errors="replace").splitlines())

    def _hear(self, fd: int) -> None:
        if not os.read(fd, READ_BYTES):
            self._loop.forget(fd)
            self._let_go()

    def _let_go(self) -> None:
        self._left_alone = True

    def _look(self) -> None:
        for pid, code in reap():
            if pid == self._pid:
                self._ended = code
        if not self._ready and self._ended is None and _answers(self._port):
            self._ready = True
            _print({"port": self._port})

    def _sweep(self) -> Dict[str, List[str]]:
        sweep = Sweep(self._name, os.getpid())
        while True:
            report = sweep.step()
            if report is not None:
                return report
            reap()
            time.sleep(0.02)


def _print(body: Dict[str, Any]) -> None:
    try:
        os.write(1, json.dumps(body).encode() + b"\n")
    except OSError:
        pass  # the client is gone


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
    except OSError:
        return False
    return True
