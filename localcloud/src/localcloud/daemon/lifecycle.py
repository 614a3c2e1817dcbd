"""Start the local cloud as a daemon, one per state directory, and stop it cleanly."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import select
import signal
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from localcloud.daemon import endpoint_file

if TYPE_CHECKING:
    from localcloud.nodes.client import NodeRunner

START_TIMEOUT_S = 40.0
# It removes what jobs have left on the disk, which may be millions of files: 100,000 take some seconds.
_STOP_TIMEOUT_S = 900.0
READY = b"ready"
_LOCK = "lock"
_LOG_BYTES = 64 << 20


class CannotStart(Exception):  # noqa: N818
    """The local cloud can't run. The message is for the user: a line for each cause, followed by its fix."""


class CannotStop(Exception):  # noqa: N818
    """The local cloud runs and can't be stopped. The message is for the user."""


@dataclass(frozen=True)
class Options:
    """The options of `serve`. `mode` is auto, range, single or root."""

    state: Path
    binds: tuple[Path, ...]
    path_dirs: tuple[str, ...]
    mode: str
    images: Path | None = None
    prices: Path | None = None


def start(options: Options) -> None:
    """Start the local cloud unless it is running, and return when it answers. Raises CannotStart."""
    options.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    _check_private(options.state)
    lock = _lock(options.state)
    if lock is None:
        return
    _check_moto()
    mode, warnings = _mode(options.mode)
    endpoint_file.remove(options.state)
    _daemonize(options, mode, warnings, lock)


def stop(state: Path, force: bool) -> dict[str, Any]:
    """Stop the local cloud of a directory, and wait until its processes have ended. Raises CannotStop.

    Returns `stopped`, and in `stacks` what it still has if it was not forced to stop. With `force`, one that does not
    answer is killed, and its nodes end with it.
    """
    answer = _ask_to_stop(state, force)
    if answer is None and not _is_locked(state):
        return {"stopped": False, "stacks": []}
    if answer is None:
        _kill(state, force)
    elif "message" in answer:
        return {"stopped": False, "stacks": answer["stacks"]}
    deadline_s = time.monotonic() + _STOP_TIMEOUT_S
    while _is_locked(state) or endpoint_file.is_live(state):
        if time.monotonic() > deadline_s:
            raise CannotStop(
                f"the local cloud in {state} (process {_holder(state).get('pid', 'unknown')}) has not ended within "
                f"{_STOP_TIMEOUT_S:g} s: it may still remove files below that directory"
            )
        time.sleep(0.02)
    if answer is None:
        endpoint_file.remove(state)
    return {"stopped": True, "stacks": []}


def _ask_to_stop(state: Path, force: bool) -> dict[str, Any] | None:
    """Return the answer of a local cloud that runs; None if none runs, or it does not answer.

    One that starts, or that another program has stopped, holds the lock without an endpoint: this waits for what comes.
    """
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while _is_locked(state):
        answer = endpoint_file.ask(state, "POST", "stop", {"force": force})
        if answer is not None or force or endpoint_file.is_live(state) or time.monotonic() > deadline_s:
            return answer
        time.sleep(0.02)
    return None


def _kill(state: Path, force: bool) -> None:
    """Kill the process that holds the lock, which it has its record in, and does not answer."""
    holder = _holder(state)
    if not force:
        raise CannotStop(f"the local cloud in {state} (process {holder.get('pid', 'unknown')}) does not answer")
    if endpoint_file.runs(holder):
        with contextlib.suppress(ProcessLookupError):
            os.kill(holder["pid"], signal.SIGKILL)


def _holder(state: Path) -> dict[str, Any]:
    try:
        holder = json.loads((state / _LOCK).read_text())
    except (OSError, ValueError):
        return {}
    return holder if isinstance(holder, dict) else {}


def _is_locked(state: Path) -> bool:
    """Whether a local cloud runs: it holds the lock from before it writes its record until its last process ends."""
    try:
        with (state / _LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _check_private(state: Path) -> None:
    """Refuse a directory that others can enter: it contains the administrator's key and all file systems."""
    found = state.stat()
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        reason = f"{state} must belong to you, and only you may enter it"
        raise CannotStart(f"{reason}\nchown $(id -un) {state} && chmod 700 {state}")


def _lock(state: Path) -> int | None:
    """Return the lock, which every process of the local cloud holds; None if another local cloud holds it and answers.

    One that is about to end holds the lock without an endpoint: this waits for its end.
    """
    lock = os.open(state / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while not _locked(lock):
        if endpoint_file.is_live(state):
            os.close(lock)
            return None
        if time.monotonic() > deadline_s:
            raise CannotStart(
                f"another local cloud holds {state / _LOCK} and does not answer\n"
                f"end it (localcloud stop --force --state {state}) and try again"
            )
        time.sleep(0.02)
    _hold(lock)
    return lock


def _hold(lock: int) -> None:
    """Write this process into the lock, so that it can be ended even if its endpoint.json is lost."""
    text = json.dumps(endpoint_file.process_record(os.getpid())).encode()
    os.ftruncate(lock, os.pwrite(lock, text, 0))


def _locked(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _check_moto() -> None:
    from localcloud.api import moto_setup

    try:
        moto_setup.check_version()
    except moto_setup.MotoMismatch as mismatch:
        raise CannotStart(str(mismatch)) from None


def _mode(wanted: str) -> tuple[str, tuple[str, ...]]:
    from localcloud.daemon import probe
    from localcloud.nodes import limits, userns

    verdict = probe.find_mode(wanted)
    texts = tuple(f"{item.what}\n{item.fix}" for item in verdict.missing)
    if not verdict.ok:
        raise CannotStart("\n".join(texts))
    if no_filter := probe.try_filter(verdict.mode):
        texts += (f"{no_filter.what}\n{no_filter.fix}",)
    is_kernels_root = os.geteuid() == userns.root_of_nodes(verdict.mode) == 0
    return verdict.mode, texts + limits.not_limited(verdict.mode, is_kernels_root)


def _daemonize(options: Options, mode: str, warnings: tuple[str, ...], lock: int) -> None:
    """Fork the daemon and wait until it reports that it answers; kill it if it does not."""
    reader, writer = os.pipe()
    daemon = os.fork()
    if daemon == 0:
        os.close(reader)
        _hold(lock)
        status = 1
        # Also when SIGTERM comes while a failure is reported: the child must not go on as a second caller.
        try:
            status = _daemon(options, mode, warnings, writer)
        finally:
            os._exit(status)
    os.close(writer)
    report = _read_report(reader, time.monotonic() + START_TIMEOUT_S)
    os.close(reader)
    if report != READY:
        # Our own child, not waited for yet: the pid can't belong to another process.
        os.kill(daemon, signal.SIGTERM)
        log = options.state / "localcloud.log"
        raise CannotStart(f"{report.decode() or 'the local cloud ended while it started'}\nsee {log}")


def _read_report(reader: int, deadline_s: float) -> bytes:
    report = b""
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    while report != READY:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0 or not poll.poll(left_s * 1000):
            return f"the local cloud did not answer within {START_TIMEOUT_S:g} s".encode()
        piece = os.read(reader, 4096)
        if not piece:
            break
        report += piece
    return report


def _daemon(options: Options, mode: str, warnings: tuple[str, ...], writer: int) -> int:
    """Run the daemon: it holds the lock, waits for the API process, and removes the endpoint at the end."""
    os.setsid()
    _redirect(options.state / "localcloud.log")
    status = 1
    try:
        _stop_in_order(options.state)
        status = _run(options, mode, warnings, writer)
    except BaseException as error:
        logging.getLogger(__name__).exception("the local cloud ended")
        _report(writer, str(error).encode())
    finally:
        endpoint_file.remove(options.state)
    return status


def _run(options: Options, mode: str, warnings: tuple[str, ...], writer: int) -> int:
    from localcloud.daemon import server
    from localcloud.daemon.room import Gauges
    from localcloud.network import accounts
    from localcloud.nodes import cgroups, pip_settings
    from localcloud.nodes.start import start_supervisor

    cgroup, no_cgroup = _cgroup()
    unlimited = _unlimited(cgroup, no_cgroup)
    state, files = options.state.resolve(), (options.images, options.prices)
    process = endpoint_file.process_record(os.getpid())
    # Here, in this machine's own namespaces.
    known = accounts.of_this_machine()
    daemon = server.Daemon(state, mode, process, warnings + unlimited, no_cgroup, *files, Gauges(), known)

    def serve_api(runner: NodeRunner, listener: socket.socket) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        try:
            server.serve(daemon, runner, listener, lambda: _report(writer, READY))
        except Exception as error:
            _report(writer, str(error).encode())
            raise

    pip = pip_settings.read()
    etc = {"pip.conf": pip.text} if pip.text else {}
    binds = (*options.binds, *pip.paths)
    try:
        return start_supervisor(
            options.state, mode, binds, options.path_dirs, serve_api, etc, cgroup, options.images, pip.paths
        )
    finally:
        if cgroup is not None:
            cgroups.give_back(cgroup)


def _cgroup() -> tuple[Path | None, str]:
    """The control group of all nodes; or None and the reason, with the command that changes it."""
    from localcloud.nodes import cgroups

    try:
        return cgroups.take(), ""
    except cgroups.NotDelegated as reason:
        return None, str(reason)


def _unlimited(cgroup: Path | None, no_cgroup: str) -> tuple[str, ...]:
    """A warning if the nodes' memory can't be limited."""
    from localcloud.nodes import cgroups

    if cgroup is not None and cgroups.can_limit(cgroup):
        return ()
    reason = no_cgroup or "this machine has no memory controller in cgroup v2."
    return (f"The memory of nodes' processes is not limited: {reason}",)


def _report(writer: int, text: bytes) -> None:
    with contextlib.suppress(OSError):
        os.write(writer, text)
        os.close(writer)


def _redirect(log: Path) -> None:
    if log.exists() and log.stat().st_size > _LOG_BYTES // 2:
        log.replace(log.with_suffix(".log.old"))
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    # A node can have lines logged without end, such as by calls that are not served.
    logging.getLogger().handlers[0].addFilter(lambda _record: os.fstat(2).st_size < _LOG_BYTES)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    logging.getLogger("botocore").setLevel(logging.WARNING)


def _stop_in_order(state: Path) -> None:
    """Make SIGTERM stop the API first. Forks inherit the handler, so it checks which process it is in."""
    own_namespace = Path("/proc/self/ns/pid")
    daemon = os.getpid(), own_namespace.readlink()

    def stop(_number: int, _frame: FrameType | None) -> None:
        if (os.getpid(), own_namespace.readlink()) != daemon:
            os._exit(128 + signal.SIGTERM)
        if not endpoint_file.ask(state, "POST", "stop", {"force": True}):
            raise SystemExit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, stop)
