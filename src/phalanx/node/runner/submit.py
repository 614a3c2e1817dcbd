"""Takes a job that the CLI sends: a daemon becomes its runner, and this process follows it."""

from __future__ import annotations

import json
import os
import resource
import socket
import sys
import time
from typing import TYPE_CHECKING, Callable, NamedTuple

from phalanx.node.process import Launcher, RefusedError, planned
from phalanx.node.runner import state as states
from phalanx.node.runner.campaign import Campaign
from phalanx.node.runner.doorway import open_listener
from phalanx.node.runner.follow import follow
from phalanx.node.runner.membership import read_roster
from phalanx.node.runner.names import RECORD, REFUSED_STATUS, REFUSED_WORDS, RUNNER
from phalanx.node.runner.planning import describe
from phalanx.node.runner.stage import Stage
from phalanx.node.runner.system import MARK, RUNNER_SOCKET, STARTER_SOCKET, roster_path, spawn

if TYPE_CHECKING:
    from typing import Any, BinaryIO, Dict, NoReturn

    from phalanx.node.roster import Roster
    from phalanx.node.runner.scheduling import Scheduler


# Tar takes an end between two members for the archive's own: the record, its last member, says that all has come.
_UNPACK = 'mkdir -p "$1" && head -c "$2" | tar -x -f - --no-same-owner -C "$1" && [ -e "$1/$3" ]'


class Plugins(NamedTuple):
    """What only the zipapp's __main__ knows, by name; for an unknown launcher RefusedError."""

    launcher: Callable[[str], Launcher]
    scheduler: Callable[[str], Scheduler]


def submit(directory: str, plugins: Plugins, runner: str, detach: bool) -> int:
    """Make this directory the job's that comes on stdin, and start it. Returns an exit status.

    Unless `detach`, it follows the job to its end. `runner` is the zipapp that this is.
    """
    os.umask(0o077)
    try:
        sizes = _read_sizes()
        _make(directory, sizes["tar"], runner)
        job = _read_job(directory)
        # Over stdin and into memory: no argument, no file, no environment but that of the job's processes.
        secrets = _read_secrets(sys.stdin.buffer, sizes["secrets"])
        roster = _roster()
        planned(plugins.launcher(job["launcher"]), describe({**job, "secrets": secrets}, directory), roster)
        if sizes["in_parts"]:
            _unpack(directory, sys.stdin.buffer)
        states.keep_room(directory)
    except (RefusedError, EOFError, OSError) as error:
        return _refuse(directory, error)
    state = states.initial(job, has_secrets=bool(secrets))
    _start_runner(directory, {**job, "secrets": secrets}, plugins, state, roster)
    return 0 if detach else follow(directory, "0")


def _read_sizes() -> Dict[str, int]:
    """The first line. By single bytes: what follows is for another process."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            raise EOFError("the submission's end did not come")
        line += byte
    return json.loads(line)


def _make(directory: str, tar_bytes: int, runner: str) -> None:
    """What the tar holds, and the runner that made it. Raises EOFError, OSError."""
    unpacker = spawn(("sh", "-c", _UNPACK, "sh", directory, str(tar_bytes), RECORD), os.environ, (0, 2, 2))
    if os.waitpid(unpacker, 0)[1] != 0:
        raise EOFError("the code could not be unpacked, or its end did not come")
    own = os.path.join(directory, RUNNER)
    try:
        os.link(runner, own)
    except OSError:  # a file system has but so many names for a file, or one name
        with open(runner, "rb") as source, open(own, "wb") as copy:
            copy.write(source.read())


def _read_secrets(stdin: BinaryIO, count: int) -> Dict[str, str]:
    text = stdin.read(count)
    if len(text) < count:
        raise EOFError("the secrets' end did not come")
    return json.loads(text or "{}")


def _roster() -> Roster:
    try:
        return read_roster()
    except FileNotFoundError:
        raise RefusedError(f"there is no {roster_path()}: this is not the head of a cluster that is ready") from None


def _unpack(directory: str, stdin: BinaryIO) -> None:
    # Here, because most jobs' code is small.
    from phalanx.node.runner.codestore import unpack

    unpack(directory, stdin, lambda text: os.write(1, text))


def _refuse(directory: str, error: Exception) -> int:
    """Nothing was started, so nothing is left to be listed."""
    import shutil

    shutil.rmtree(directory, ignore_errors=True)
    if isinstance(error, RefusedError):
        print(f"{REFUSED_WORDS}{error}", file=sys.stderr)
        return REFUSED_STATUS
    print(error, file=sys.stderr)
    return 1


def resume(directory: str, plugins: Plugins) -> int:
    """Take over a job whose runner died, for another attempt; whoever calls it has made sure that it is dead."""
    os.umask(0o077)
    from phalanx.node.runner.settle import lost_state

    state = states.read(directory)
    message = lost_state(state)["message"]
    state["attempts"][-1].update(message=message, died=True)
    number = len(state["attempts"])
    state.update(state=states.PENDING, message=f"restart {number} of {state['restarts']}: {message}")
    _start_runner(directory, {**_read_job(directory), "secrets": {}}, plugins, state, read_roster())
    return 0


def _read_job(directory: str) -> Dict[str, Any]:
    with open(os.path.join(directory, RECORD)) as file:
        return json.load(file)


def _start_runner(directory: str, job: Dict[str, Any], plugins: Plugins, state: states.State, roster: Roster) -> None:
    state["runner"] = {"head": roster.head.instance_id}
    with open_listener(job["id"]) as door:
        _daemonize(directory, job, plugins, state, door)


def _daemonize(directory: str, job: Dict[str, Any], plugins: Plugins, state: states.State, door: socket.socket) -> None:
    """Fork thrice: a watcher that is nobody's child and has no terminal, and the runner as its child.

    Returns when the runner has written its state.
    """
    began_read, began_write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(began_write)
        os.waitpid(pid, 0)
        os.read(began_read, 1)
        os.close(began_read)
        return
    os.close(began_read)
    os.setsid()
    if os.fork():
        os._exit(0)
    try:
        _detach_streams(directory)
        runner = os.fork()
        if runner == 0:
            _become_runner(directory, job, plugins, state, door, began_write)
        os.close(began_write)
        door.close()
        _settle_after(runner, directory)
    except BaseException:
        _log_traceback()
    finally:
        os._exit(1)


def _settle_after(runner: int, directory: str) -> None:
    """When the runner is killed, its job is settled here: the head may have no starter whose guard would do it.

    So it is for a job that waits in a scheduler's queue, or has no process on the head.
    """
    if os.waitpid(runner, 0)[1] == 0:
        os._exit(0)
    os.execvp("python3", ["python3", "-IS", os.path.join(directory, RUNNER), "settle", directory])


def _become_runner(
    directory: str, job: Dict[str, Any], plugins: Plugins, state: states.State, door: socket.socket, began: int
) -> NoReturn:
    status = 1
    try:
        state["runner"] = states.this_runner(state["runner"]["head"])
        states.write(directory, state)
        os.close(began)
        _run(directory, job, plugins, state, door)
        status = 0
    except BaseException:
        _log_traceback()
    finally:
        os._exit(status)


def _log_traceback() -> None:
    # Here, because it costs 10 ms and only a mistake of ours needs it.
    import traceback

    traceback.print_exc()


def _detach_streams(directory: str) -> None:
    log = os.open(os.path.join(directory, "runner.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDWR)
    for target, fd in enumerate((null, log, log)):
        os.dup2(fd, target)
    os.close(null)
    os.close(log)
    os.chdir("/")


def _run(directory: str, job: Dict[str, Any], plugins: Plugins, state: states.State, door: socket.socket) -> None:
    for name in (MARK, STARTER_SOCKET, RUNNER_SOCKET):
        os.environ.pop(name, None)
    _raise_file_limit()
    campaign = None
    try:
        scheduler = plugins.scheduler(job["via"]["scheduler"]) if job.get("via") else None
        stage = Stage(directory, door)
        campaign = Campaign(directory, job, plugins.launcher(job["launcher"]), state, stage, scheduler)
        campaign.run()
    except RefusedError as error:
        _end_early(directory, state, str(error), 2)
    except Exception as error:
        _log_traceback()
        # Every starter ends its processes when the runner's end of its channel closes.
        held = f" ({campaign.unreturned})" if campaign and campaign.unreturned else ""
        _end_early(directory, state, f"phalanx's runner failed: {error!r}; see {directory}/runner.log{held}", 1)


def _end_early(directory: str, state: states.State, message: str, exit_code: int) -> None:
    over = {"state": states.FAILED, "message": message, "exit_code": exit_code, "ended_at": time.time()}
    states.write(directory, {**state, **over})


def _raise_file_limit() -> None:
    # A channel takes three files and a rank one.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
