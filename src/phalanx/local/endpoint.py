"""Start, find, query and stop the local cloud, by its interface (localcloud/docs/interface.md). Imports no botocore."""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import os
import shutil
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
from phalanx.local import images, isolated
from phalanx.state_files import state_directory
from phalanx.waits import waiting

ANSWER_TIMEOUT_S = 5.0
START_TIMEOUT_S = 45.0
_COMMAND_TIMEOUT_S = 45.0
# Longer than the local cloud's own deadline, which it explains.
_STOP_TIMEOUT_S = 960.0
# A local cloud that stops closes its port a moment before its process ends.
_ENDS_WITHIN_S = 3.0
# It writes some hundred KiB before it answers.
_LEAST_FREE_BYTES = 1 << 20
_MODES = ("range", "single", "root")
_FORMAT = 1


class StacksLeft(LocalCloudError):  # noqa: N818 - a state, not a fault
    """The local cloud can't stop because it still runs clusters."""

    code = "clusters-left"

    def __init__(self, stacks: list[str]) -> None:
        super().__init__(
            f"the local cloud still runs {', '.join(stacks) or 'clusters'}",
            "`phalanx down` removes a cluster; `phalanx local stop --force` ends all of them at once.",
        )


@dataclass(frozen=True)
class Endpoint:
    """The address, the process and the keys of a running local cloud."""

    url: str
    pid: int
    started_ticks: int
    code: str
    mode: str
    access_key_id: str
    secret_access_key: str
    dial: tuple[str, ...]
    ssh_options: tuple[str, ...]
    accounts_separated: bool = True
    warnings: tuple[str, ...] = ()
    no_cgroup: str = ""
    open_networks: str = ""

    @property
    def is_alive(self) -> bool:
        """Whether its process runs: its pid may be another program's by now, and a zombie has ended."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return False
        return fields[0] != "Z" and int(fields[19]) == self.started_ticks  # the 3rd and the 22nd of proc(5)


def state() -> Path:
    """Return the local cloud's directory."""
    return state_directory() / "local"


def find() -> Endpoint | None:
    """Return the running local cloud, or None. Raises LocalCloudError when its process runs but does not answer."""
    endpoint = find_process() or _starting_or_ending()
    if endpoint is None:
        return None
    try:
        # The shortest answer: the state of a hundred nodes takes longer than what many commands ask for.
        _request(endpoint, "GET", "/weather")
    except OSError as error:
        if not endpoint.is_alive:
            return None
        raise LocalCloudError(
            f"the local cloud (process {endpoint.pid}) does not answer at {endpoint.url}: {error}",
            "`phalanx local stop --force` ends it, and its clusters with it.",
            code="local-cloud-silent",
        ) from error
    return endpoint


def find_process() -> Endpoint | None:
    """Return the record of a local cloud whose process runs, whether it answers or not."""
    return recorded(state())


def recorded(directory: Path) -> Endpoint | None:
    """Return the record of the local cloud that has this directory, and runs."""
    endpoint = _recorded(directory)
    return endpoint if endpoint is not None and endpoint.is_alive else None


def _recorded(directory: Path) -> Endpoint | None:
    try:
        text = (directory / "endpoint.json").read_text()
        # Its advice names its own command, which phalanx starts for its users.
        record = json.loads(text.replace("localcloud serve", "phalanx up"))
        if record["format"] > _FORMAT:
            raise LocalCloudError(
                "the local cloud that runs is newer than this phalanx",
                "Install the newer phalanx, or end the local cloud with its clusters: phalanx local stop --force.",
                code="newer-local-cloud",
            )
        lists = {key: tuple(value) for key, value in record.items() if isinstance(value, list)}
        return Endpoint(**{key: {**record, **lists}[key] for key in Endpoint.__dataclass_fields__})
    except (OSError, ValueError, TypeError, AttributeError, LookupError):
        # A full disk or a crash cut the record short. The lock still shows whether a local cloud runs.
        return None


def _starting_or_ending() -> Endpoint | None:
    """Wait until the process with the lock writes its record or ends. Raises LocalCloudError if it does neither."""
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while _is_locked():
        endpoint = find_process()
        if endpoint is not None:
            return endpoint
        if time.monotonic() > deadline_s:
            raise LocalCloudError(
                f"a local cloud runs (it holds {state() / 'lock'}), but its record endpoint.json is lost or damaged",
                "`phalanx local stop --force` ends it, and its clusters with it.",
                code="damaged-record",
            )
        time.sleep(0.02)
    return None


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
    while endpoint.is_alive:
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
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr, start_new_session=True, cwd="/"
        )
    _starting.append((process, errors))


def wait(timeout_s: float = START_TIMEOUT_S) -> Endpoint:
    """Wait for a local cloud that `begin` started. Raises LocalCloudError with the reason that it printed."""
    if not _starting:
        return running()
    with waiting("the local cloud to start"):
        return _started(*_starting.pop(), timeout_s)


def _started(process: subprocess.Popen[bytes], errors: Path, timeout_s: float) -> Endpoint:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout_s)
    endpoint = find_process()
    if process.returncode != 0 or endpoint is None:
        raise _not_started(process, errors, timeout_s)
    errors.unlink(missing_ok=True)
    return endpoint


def remedy(endpoint: Endpoint) -> str:
    """Return what to do where a local cloud lacks what this version asks of it; "" if it runs the installed code."""
    if _answer("version").get("code") == endpoint.code:
        return ""
    return (
        f"The local cloud (process {endpoint.pid}) was started by another version of phalanx. Fetch what you need with "
        "`phalanx get`; `phalanx local stop --force` then ends it, and its clusters with it."
    )


def status(there: Endpoint | None = None) -> dict[str, Any]:
    """Return what a local cloud (default: the user's) reports: its mode, stacks, nodes, processes, GPUs and weather."""
    return _request(there or running(), "GET", "/status")[1]


def weather(*options: str) -> dict[str, Any]:
    """Return the weather, and what it has done; with `options` set it before (`localcloud weather`)."""
    return _answer("weather", "--state", _place(), *options)


def weather_speed() -> float:
    """Return what divides AWS's delays in the local cloud; 1 without a forecast."""
    if not state().exists():
        return 1.0
    return (_request(running(), "GET", "/weather")[1] if find_process() else weather())["speed"]


def interrupt(instance_id: str, notice_s: float | None) -> None:
    """Have EC2 take a spot instance back after `notice_s`; None: as soon as on AWS. Raises LocalCloudError."""
    fault = {"instance_id": instance_id, "notice_s": notice_s}
    inject({"interrupt": fault}, hint="The workers are spot instances with `capacity: spot` in phalanx.yaml.")


def shape(instance_id: str, rate_bit_s: int, delay_s: float) -> None:
    """Limit what a node's link carries each way, and delay what it sends; 0 lifts each. Raises LocalCloudError."""
    inject({"link": {"instance_id": instance_id, "rate_bit_s": rate_bit_s, "delay_s": delay_s}})


def inject(faults: dict[str, Any], there: Endpoint | None = None, hint: str = "") -> None:
    """Put faults into a local cloud (default: the user's). Raises LocalCloudError."""
    try:
        code, answer = _request(there or running(), "POST", "/faults", faults)
    except OSError as error:
        raise LocalCloudError(f"the local cloud does not answer: {error}", code="local-cloud-silent") from error
    if code != 200:
        raise LocalCloudError(f"the fault is not possible: {answer['message']}", hint, code="fault-impossible")


def shortages(nodes: int, is_full: bool) -> list[dict[str, Any]]:
    """Return what this machine has not enough of for this many new nodes."""
    return _answer("room", "--state", _place(), "--nodes", str(nodes), *(["--full"] if is_full else []))


def stand_ins(number: int | None = None) -> int:
    """Return how many stand-ins for GPUs a new node has if its type has GPUs; with `number`, set that before."""
    if number is None and not state().exists():
        return 0
    return _answer("gpus", "--state", _place(), *([] if number is None else [str(number)]))["gpus"]


def account(profile: str | None = None) -> dict[str, Any]:
    """Return whose account the local cloud plays, and what it has; with `profile`, set that for its next start."""
    return _answer("account", "--state", _place(), *([] if profile is None else [profile]))


def require_region(region: str) -> None:
    """Raise LocalCloudError unless a region is in the partition of the account that the local cloud plays."""
    found = account()
    others = (("china", "cn-"), ("gov", "us-gov-"), ("eusc", "eusc-"))
    profile = next((name for name, prefix in others if region.startswith(prefix)), "")
    if region in found.get("regions", () if profile else (region,)):
        return
    here = f"; this one has {' and '.join(found['regions'])}" if "regions" in found else ""
    raise LocalCloudError(
        f"{region} is in another partition than the account {found['profile']}, which the local cloud plays{here}",
        f"Choose another `region:`, or `phalanx local account {profile or 'own'}` while the local cloud is stopped.",
        code="other-partition",
    )


def kept_file_systems() -> list[dict[str, Any]]:
    """Return the file systems that outlive the local cloud, newest first: id, path, record, region and tags."""
    return _answer("file-systems", "--state", _place()) if state().exists() else []


def kept_file_system(file_system: str) -> dict[str, Any]:
    """Return one of them. Raises LocalCloudError if it does not exist, or its record is damaged."""
    kept = {one["id"]: one for one in kept_file_systems()}
    if file_system not in kept:
        names = f"Kept file systems: {', '.join(sorted(kept))}." if kept else "There are none."
        raise LocalCloudError(f"there is no kept file system '{file_system}'", names, code="no-file-system")
    found = kept[file_system]
    if not found["region"]:
        raise LocalCloudError(
            f"the record of {file_system} is damaged: {found['record']}",
            f"Its files are in {found['path']}. To delete them, delete both.",
            code="damaged-record",
        )
    return found


def shell_lines(region: str) -> str:
    """Return the shell commands that point clients at the running local cloud. Raises LocalCloudError."""
    return _run("env", "--state", _place(), "--region", region)


def stop(force: bool = False) -> bool:
    """Stop the local cloud and wait for its process; return False if none ran. Raises StacksLeft unless `force`."""
    if not _is_locked():
        return False
    with waiting("the local cloud to stop"):
        try:
            answer = json.loads(
                _run("stop", "--state", _place(), *(["--force"] if force else []), timeout_s=_STOP_TIMEOUT_S)
            )
        except LocalCloudError as error:
            error.hint = error.hint or ("" if force else "`phalanx local stop --force` ends it.")
            raise
    if answer["stacks"]:
        raise StacksLeft([stack["name"] for stack in answer["stacks"]])
    return answer["stopped"]


def _place() -> str:
    return str(state().absolute())


def _answer(*arguments: str) -> Any:
    return json.loads(_run(*arguments))


def _run(*arguments: str, timeout_s: float = _COMMAND_TIMEOUT_S) -> str:
    """Run a command of the local cloud, and return its output. Raises LocalCloudError with the reason that it gave."""
    try:
        done = subprocess.run(
            isolated.program(*arguments),
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise LocalCloudError(
            f"`localcloud {arguments[0]}` did not end within {timeout_s:g} s", _log_hint(), code="local-cloud-silent"
        ) from None
    if done.returncode and not done.stdout:
        raise _not_installed() or LocalCloudError(
            done.stderr.strip() or f"`localcloud {arguments[0]}` failed", code="local-cloud-failed"
        )
    return done.stdout


def _log_hint() -> str:
    return f"See {state() / 'localcloud.log'}."


def _not_installed() -> LocalCloudError | None:
    if find_spec("localcloud") is not None:
        return None
    return LocalCloudError(
        "the local cloud is not installed", "pip install 'phalanx[local]'", code="local-cloud-missing"
    )


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
    files = ["--images", str(images.directory()), "--prices", str(location("prices"))]
    return isolated.program("serve", "--state", _place(), *binds, "--path", f"{sys.prefix}/bin", *files, *_mode())


def _mode() -> list[str]:
    """Return the option for PHALANX_LOCAL_MODE=range|single|root, which overrides the local cloud's choice."""
    chosen = os.environ.get("PHALANX_LOCAL_MODE")
    if chosen and chosen not in _MODES:
        raise LocalCloudError(
            f"PHALANX_LOCAL_MODE is '{chosen}'", f"Set it to {', '.join(_MODES)}, or unset it.", code="bad-mode"
        )
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
    if missing := _not_installed():
        return missing
    if shutil.disk_usage(state()).free < _LEAST_FREE_BYTES:
        hint = "Free some space, or set PHALANX_STATE_DIR to a directory on another disk."
        return LocalCloudError(f"the local cloud can't start: the disk of {state()} is full", hint, code="disk-full")
    reason = errors.read_text(errors="replace").strip()
    errors.unlink()
    if process.poll() is None:
        process.terminate()
        return LocalCloudError(
            f"the local cloud did not answer within {timeout_s:g} s\n{reason}", _log_hint(), code="local-cloud-silent"
        )
    hint = "unset PHALANX_LOCAL_MODE" if os.environ.get("PHALANX_LOCAL_MODE") else ""
    reason = reason or "it ended without a message"
    return LocalCloudError(f"the local cloud can't run on this machine:\n{reason}", hint, code="local-cloud-impossible")
