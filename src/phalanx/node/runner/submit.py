"""Takes a job that the CLI has just unpacked: a daemon becomes its runner, and this process follows it."""

from __future__ import annotations

import json
import os
import resource
import select
import socket
import sys
import time
from typing import Any, Callable, Dict, Mapping, Sequence, Tuple

from phalanx.node.process import JobDescription, Launcher, Process, RefusedError
from phalanx.node.roster import Roster
from phalanx.node.runner import state as states
from phalanx.node.runner.conductor import Conductor
from phalanx.node.runner.doorway import open_listener
from phalanx.node.runner.follow import follow
from phalanx.node.runner.system import MARK, RUNNER_SOCKET, STARTER_SOCKET, spawn

# Another place for it is of use where there is no node: in tests.
_ROSTER = os.environ.get("PHALANX_ROSTER", "/opt/phalanx/roster.json")
_ENGINE_WITHIN_S = 10.0

Load = Callable[[str], Launcher]  # the launcher of this name; RefusedError: there is none


def submit(directory: str, load: Load, detach: bool, secrets: Mapping[str, str]) -> int:
    """Start the job in this directory; unless `detach`, follow it to its end. Returns an exit status.

    `secrets` are variables for its processes that are written nowhere.
    """
    os.umask(0o077)
    with open(os.path.join(directory, "job.json")) as file:
        job = json.load(file)
    try:
        with open(_ROSTER) as file:
            states.write_file(os.path.join(directory, "roster.json"), file.read())
    except FileNotFoundError:
        sys.exit(f"there is no {_ROSTER}: this is not the head of a cluster that is ready")
    with open_listener(job["id"]) as door:
        _daemonize(directory, {**job, "secrets": secrets}, load, door)
    return 0 if detach else follow(directory)


def _daemonize(directory: str, job: Dict[str, Any], load: Load, door: socket.socket) -> None:
    """Fork twice, so that the runner is nobody's child and has no terminal; returns when it has written its state."""
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
    status = 1
    try:
        _detach_streams(directory)
        state = {**states.initial(job), "runner": states.this_runner()}
        states.write(directory, state)
        os.close(began_write)
        _run(directory, job, load, state, door)
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


def _run(directory: str, job: Dict[str, Any], load: Load, state: states.State, door: socket.socket) -> None:
    for name in (MARK, STARTER_SOCKET, RUNNER_SOCKET):
        os.environ.pop(name, None)
    _raise_file_limit()
    try:
        description, roster, processes = _describe(directory, job, load(job["launcher"]))
        Conductor(description, roster, processes, state, door).run()
    except RefusedError as error:
        _end_early(directory, state, str(error), 2)
    except Exception as error:
        _log_traceback()
        # Every starter ends its processes when the runner's end of its channel closes.
        _end_early(directory, state, f"phalanx's runner failed: {error!r}; see {directory}/runner.log", 1)


def _end_early(directory: str, state: states.State, message: str, exit_code: int) -> None:
    over = {"state": states.FAILED, "message": message, "exit_code": exit_code, "ended_at": time.time()}
    states.write(directory, {**state, **over})


def _raise_file_limit() -> None:
    # A channel takes three files and a rank one.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _describe(
    directory: str, job: Dict[str, Any], launcher: Launcher
) -> Tuple[JobDescription, Roster, Sequence[Process]]:
    with open(os.path.join(directory, "roster.json")) as file:
        roster = Roster.from_json(file.read())
    description = JobDescription(
        id=job["id"],
        name=job["name"],
        launcher=job["launcher"],
        command=tuple(job["command"]),
        processes=job["processes"],
        per_node=job["per_node"],
        env=job["env"],
        secrets=job["secrets"],
        directory=directory,
        master_port=_free_port(),
        engine=_output_of(launcher.ENGINE, {**os.environ, **job["env"]}) if launcher.ENGINE else "",
    )
    processes = launcher.processes(description, roster)
    for process in processes:
        _write_files(directory, process)
    return description, roster, processes


def _write_files(directory: str, process: Process) -> None:
    for name, text in process.files.items():
        states.write_file(os.path.join(directory, name), text, 0o700 if text.startswith("#!") else 0o600)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def _output_of(argv: Sequence[str], env: Dict[str, str]) -> str:
    """What the command prints, "" when it is not there or says nothing in time."""
    out_read, out_write = os.pipe()
    null = os.open(os.devnull, os.O_RDWR)
    spawn(argv, env, (null, out_write, null))
    os.close(out_write)
    deadline = time.monotonic() + _ENGINE_WITHIN_S
    text = b""
    while select.select([out_read], [], [], max(0, deadline - time.monotonic()))[0]:
        data = os.read(out_read, 4096)
        if not data:
            break
        text += data
    os.close(out_read)
    return text.decode(errors="replace")
