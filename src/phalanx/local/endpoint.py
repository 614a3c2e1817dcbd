"""Start, find, query and stop the local cloud's process. Imports no botocore."""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.parse
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import phalanx
from phalanx.data import location
from phalanx.errors import LocalCloudError, NotRunning
from phalanx.local import images, local_code
from phalanx.state_files import state_directory
from phalanx.waits import waiting

ANSWER_TIMEOUT_S = 5.0
START_TIMEOUT_S = 45.0
STOP_TIMEOUT_S = 20.0
# A local cloud that stops closes its port a moment before its process ends.
_ENDS_WITHIN_S = 3.0
# It writes some hundred KiB before it answers.
_LEAST_FREE_BYTES = 1 << 20
_PROGRAM = b"localcloud"
_MODES = ("range", "single", "root")


class StacksLeft(LocalCloudError):  # noqa: N818 - a state, not a fault
    """The local cloud can't stop because it still runs clusters; `stacks` names them."""

    def __init__(self, stacks: list[str]) -> None:
        super().__init__(
            f"the local cloud still runs {', '.join(stacks) or 'clusters'}",
            "`phalanx down` removes a cluster; `phalanx local stop --force` ends all of them at once.",
        )
        self.stacks = stacks


@dataclass(frozen=True)
class Endpoint:
    """The address and keys of a running local cloud."""

    url: str
    pid: int
    mode: str
    access_key_id: str
    secret_access_key: str
    dial: str
    state: str
    accounts_separated: bool = True
    warnings: tuple[str, ...] = ()
    no_cgroup: str = ""
    open_networks: str = ""


def state() -> Path:
    """Return the local cloud's directory."""
    return state_directory() / "local"


def find() -> Endpoint | None:
    """Return the running local cloud, or None. Raises LocalCloudError when its process runs but does not answer."""
    endpoint = find_process() or _starting_or_ending()
    if endpoint is None:
        return None
    try:
        _request(endpoint, "GET", "/status")
    except OSError as error:
        if not _alive(endpoint.pid):
            return None
        raise LocalCloudError(
            f"the local cloud (process {endpoint.pid}) does not answer at {endpoint.url}: {error}",
            "`phalanx local stop --force` ends it, and its clusters with it.",
        ) from error
    return endpoint


def find_process() -> Endpoint | None:
    """Return the record of a local cloud whose process runs, whether it answers or not."""
    return recorded(state())


def recorded(directory: Path) -> Endpoint | None:
    """Return the record of the local cloud that has this directory, and runs."""
    endpoint = _recorded(directory)
    return endpoint if endpoint is not None and _alive(endpoint.pid) else None


def _starting_or_ending() -> Endpoint | None:
    """Wait until the process with the lock writes its record or ends. Raises LocalCloudError if it does neither."""
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while _is_locked():
        endpoint = find_process()
        if endpoint is not None:
            return endpoint
        if time.monotonic() > deadline_s:
            raise _unrecorded()
        time.sleep(0.02)
    return None


def running() -> Endpoint:
    """Return the running local cloud. Raises NotRunning."""
    endpoint = find()
    if endpoint is None:
        raise _not_running()
    return endpoint


def _not_running() -> NotRunning:
    reason = "the local cloud is not running, so none of its clusters exists any more"
    return NotRunning(reason, "`phalanx up` makes one.")


def require_alive(endpoint: Endpoint) -> None:
    """Raise NotRunning if the process has ended or ends within 3 s. Call this after a request got no answer."""
    deadline_s = time.monotonic() + _ENDS_WITHIN_S
    while _alive(endpoint.pid):
        if time.monotonic() > deadline_s:
            return
        time.sleep(0.02)
    raise _not_running()


_starting: list[tuple[subprocess.Popen[bytes], Path]] = []


def begin() -> None:
    """Start the local cloud unless it runs, and return at once; `wait` returns the endpoint."""
    if _starting or find() is not None:
        return
    argv = _serve_argv()
    state().mkdir(parents=True, exist_ok=True, mode=0o700)
    errors = state() / "start.stderr"
    with errors.open("wb") as stderr:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr, start_new_session=True
        )
    _starting.append((process, errors))


def wait(timeout_s: float = START_TIMEOUT_S) -> Endpoint:
    """Wait for a local cloud that `begin` started. Raises LocalCloudError with the reason that it printed."""
    if not _starting:
        return running()
    with waiting("the local cloud to start"):
        return _started(*_starting[-1], timeout_s)


def _started(process: subprocess.Popen[bytes], errors: Path, timeout_s: float) -> Endpoint:
    deadline_s = time.monotonic() + timeout_s
    while True:
        endpoint = find_process()
        if endpoint is not None:
            _starting.clear()
            # This process has forked the local cloud and now ends by itself.
            process.wait(timeout_s)
            errors.unlink(missing_ok=True)
            return endpoint
        if process.poll() not in (None, 0) or time.monotonic() > deadline_s:
            _starting.clear()
            raise _not_started(process, errors, timeout_s)
        time.sleep(0.01)


def status() -> dict[str, Any]:
    """Return what the local cloud reports: its mode, stacks, nodes and processes."""
    return _request(running(), "GET", "/status")[1]


def weather() -> dict[str, Any] | None:
    """Return the weather of the running local cloud, and what it has done; None if none runs."""
    return None if find() is None else _request(running(), "GET", "/weather")[1]


def renew_weather() -> None:
    """Let the local cloud, if it runs, read its forecast again."""
    if find() is not None:
        _request(running(), "POST", "/weather")


def interrupt(instance_id: str, notice_s: float | None) -> None:
    """Have EC2 take a spot instance back after `notice_s`; None: as soon as on AWS. Raises LocalCloudError."""
    fault = {"instance_id": instance_id, "notice_s": notice_s}
    code, answer = _request(running(), "POST", "/faults", {"interrupt": fault})
    if code != 200:
        raise LocalCloudError(
            f"the node can't be interrupted: {answer['message']}",
            "The workers are spot instances with `capacity: spot` in phalanx.yaml.",
        )


def shape(instance_id: str, rate_bit_s: int, delay_s: float) -> None:
    """Limit what a node's link carries each way, and delay what it sends; 0 lifts each. Raises LocalCloudError."""
    link = {"instance_id": instance_id, "rate_bit_s": rate_bit_s, "delay_s": delay_s}
    code, answer = _request(running(), "POST", "/faults", {"link": link})
    if code != 200:
        raise LocalCloudError(f"the link can't be shaped: {answer['message']}")


def inject(there: Endpoint, faults: dict[str, Any]) -> None:
    """Put faults into a local cloud (localcloud.daemon.faults). Raises LocalCloudError."""
    try:
        code, answer = _request(there, "POST", "/faults", faults)
    except OSError as error:
        raise LocalCloudError(f"the local cloud does not answer: {error}") from error
    if code != 200:
        raise LocalCloudError(f"the fault is not possible: {answer['message']}")


def shortages(nodes: int, is_full: bool) -> list[dict[str, Any]]:
    """Return what this machine has not enough of for so many new nodes (localcloud.daemon.room)."""
    argv = [sys.executable, "-m", "localcloud", "room", "--state", str(state().absolute())]
    argv += ["--nodes", str(nodes), *(["--full"] if is_full else [])]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=START_TIMEOUT_S, check=False)
    return json.loads(done.stdout or "[]")


def stand_ins() -> int:
    """Return how many stand-ins for GPUs a new node has if its type has GPUs (localcloud.ec2.gpus)."""
    kept = state() / "gpus"
    return int(kept.read_text()) if kept.exists() else 0


def has_weather() -> bool:
    """Whether there is a forecast (localcloud.weather), so that calls may be throttled."""
    return (state() / "weather.json").exists()


def stop(force: bool = False) -> bool:
    """Stop the local cloud and wait for its process; return False if none ran. Raises StacksLeft unless `force`."""
    endpoint = find_process() or (None if force else _starting_or_ending())
    if endpoint is None:
        return force and _kill_unrecorded()
    try:
        code, answer = _request(endpoint, "POST", "/stop", {"force": force})
    except OSError:
        code, answer = _end_unresponsive(endpoint, force), {}
    if code == 409:
        raise StacksLeft([str(stack.get("name", stack)) for stack in answer.get("stacks", [])])
    with waiting("the local cloud to stop"):
        _wait_gone(endpoint)
    return True


def _end_unresponsive(endpoint: Endpoint, force: bool) -> int:
    """Kill a process that does not answer, if `force`. Its namespaces, and with them all nodes, end too."""
    if not force:
        raise LocalCloudError(f"the local cloud (process {endpoint.pid}) does not answer", "Add --force to end it.")
    with contextlib.suppress(ProcessLookupError):
        os.kill(endpoint.pid, signal.SIGKILL)
    (state() / "endpoint.json").unlink(missing_ok=True)
    return 200


def _kill_unrecorded() -> bool:
    """Kill the process that holds the lock without a record. Only its command line identifies it as ours."""
    found = _is_locked()
    for pid in _processes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    deadline_s = time.monotonic() + STOP_TIMEOUT_S
    while _is_locked():
        if time.monotonic() > deadline_s:
            raise _unrecorded()
        time.sleep(0.02)
    return found


def _unrecorded() -> LocalCloudError:
    return LocalCloudError(
        f"a local cloud runs (it holds {state() / 'lock'}), but its record endpoint.json is lost or damaged",
        "`phalanx local stop --force` ends it, and its clusters with it.",
    )


def _wait_gone(endpoint: Endpoint) -> None:
    deadline_s = time.monotonic() + STOP_TIMEOUT_S
    while _alive(endpoint.pid) or (state() / "endpoint.json").exists():
        if time.monotonic() > deadline_s:
            raise LocalCloudError(
                f"the local cloud (process {endpoint.pid}) did not stop within {STOP_TIMEOUT_S:g} s",
                f"See {state() / 'localcloud.log'}.",
            )
        time.sleep(0.02)


def _recorded(directory: Path) -> Endpoint | None:
    try:
        record = json.loads((directory / "endpoint.json").read_text())
        known = {key: record[key] for key in Endpoint.__dataclass_fields__ if key in record}
        return Endpoint(**{**known, "pid": int(record["pid"]), "warnings": tuple(record.get("warnings", ()))})
    except (OSError, ValueError, TypeError, AttributeError, LookupError):
        # A full disk or a crash cut the record short. The lock still shows whether a local cloud runs.
        return None


def _alive(pid: int) -> bool:
    """Whether this process is a local cloud: its id may belong to another program by now. (A zombie has no argv.)"""
    return _PROGRAM in local_code.command_line(pid)


def _processes() -> list[int]:
    """Return the processes of the local cloud of this state directory, found by their command line."""
    place = os.fsencode(state().absolute())
    pids = [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]
    return [pid for pid in pids if _PROGRAM in (argv := local_code.command_line(pid)) and place in argv]


def _is_locked() -> bool:
    """Whether a process of the local cloud runs. It holds the lock from before it writes its record until it ends."""
    try:
        with (state() / "lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _request(
    endpoint: Endpoint, method: str, path: str, body: dict[str, Any] | None = None
) -> tuple[int, dict[str, Any]]:
    where = urllib.parse.urlsplit(endpoint.url)
    headers = {"X-Localcloud-Key": endpoint.secret_access_key, "Content-Type": "application/json"}
    connection = http.client.HTTPConnection(where.hostname or "127.0.0.1", where.port, timeout=ANSWER_TIMEOUT_S)
    with contextlib.closing(connection), waiting("the local cloud to answer"):
        try:
            connection.request(method, f"/_localcloud{path}", json.dumps(body or {}), headers)
            response = connection.getresponse()
            text = response.read()
        except http.client.HTTPException as error:
            raise ConnectionError(f"not an HTTP answer: {error!r}") from error
    return response.status, json.loads(text or b"{}")


def _serve_argv() -> list[str]:
    binds = [argument for path in _visible_in_nodes() for argument in ("--bind", str(path))]
    serve = [sys.executable, "-m", "localcloud", "serve", "--state", str(state().absolute())]
    files = ["--images", str(images.directory()), "--prices", str(location("instance_types"))]
    return [*serve, *binds, "--path", f"{sys.prefix}/bin", *files, "--code", local_code.identity(), *_mode()]


def _mode() -> list[str]:
    """Return the option for PHALANX_LOCAL_MODE=range|single|root, which overrides the local cloud's choice."""
    chosen = os.environ.get("PHALANX_LOCAL_MODE")
    if chosen and chosen not in _MODES:
        raise LocalCloudError(f"PHALANX_LOCAL_MODE is '{chosen}'", f"Set it to {', '.join(_MODES)}, or unset it.")
    return ["--mode", chosen] if chosen else []


def _visible_in_nodes() -> list[Path]:
    """Return directories to show in nodes, so that a job finds the Python and the packages that phalanx runs with."""
    source = Path(phalanx.__file__).parent.parent
    candidates = [Path(sys.prefix), Path(sys.base_prefix), source]
    kept: list[Path] = []
    for path in candidates:
        if not any(path == other or other in path.parents for other in [*kept, Path("/usr")]):
            kept.append(path)
    return kept


def _not_started(process: subprocess.Popen[bytes], errors: Path, timeout_s: float) -> LocalCloudError:
    if find_spec("localcloud") is None:
        return LocalCloudError("the local cloud is not installed", "pip install 'phalanx[local]'")
    if shutil.disk_usage(state()).free < _LEAST_FREE_BYTES:
        hint = "Free some space, or set PHALANX_STATE_DIR to a directory on another disk."
        return LocalCloudError(f"the local cloud can't start: the disk of {state()} is full", hint)
    reason = errors.read_text(errors="replace").strip()
    errors.unlink()
    if process.poll() is None:
        process.terminate()
        return LocalCloudError(
            f"the local cloud did not answer within {timeout_s:g} s\n{reason}", f"See {state() / 'localcloud.log'}."
        )
    return LocalCloudError(f"the local cloud can't run on this machine:\n{reason or 'it ended without a message'}")
