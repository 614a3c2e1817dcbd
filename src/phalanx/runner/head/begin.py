"""The runner's process: a daemon that outlives its parent, and a watcher that settles its job if it is killed."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from phalanx.runner import checked
from phalanx.runner.files import job_record, record
from phalanx.runner.files import state as states
from phalanx.runner.files.job_status import JobState, JobStatus
from phalanx.runner.files.output import OutputReader
from phalanx.runner.head.conductor import Conductor
from phalanx.runner.head.membership import read_roster
from phalanx.runner.head.restarts import with_lost
from phalanx.runner.head.run_context import RunContext
from phalanx.runner.head.runner_socket import open_listener
from phalanx.runner.head.settle import what_died
from phalanx.runner.head.supervisor import Supervisor
from phalanx.runner.names import OUTPUT, RUNNER, STOP
from phalanx.runner.process import RefusedError
from phalanx.runner.system import forget_other_jobs, raise_file_limit

if TYPE_CHECKING:
    import socket
    from typing import NoReturn, Tuple, Union

    from phalanx.node.roster import Roster
    from phalanx.runner.files.job_record import JobRecord
    from phalanx.runner.plugins import Plugins


def begin(directory: str, job: JobRecord, plugins: Plugins, roster: Roster) -> None:
    """Start the runner of a complete job, secrets included; return when it has written its state."""
    _start(Runner(directory, job, plugins, JobStatus.first(job)), roster)


def resume(directory: str, plugins: Plugins) -> int:
    """Take over a job whose runner died, for another attempt; the caller has made sure that it is dead."""
    os.umask(0o077)
    forget_other_jobs()
    raise_file_limit()
    status = states.read(directory)
    message = what_died(status)
    position = 0 if status.tasks else OutputReader(os.path.join(directory, OUTPUT)).end()
    attempts = with_lost(status.attempts, message, position)
    restart = f"it goes on: {message}" if status.tasks else f"restart {len(attempts)} of {status.restarts}: {message}"
    status = status._replace(attempts=tuple(attempts), state=JobState.PENDING, message=restart)
    _start(Runner(directory, job_record.read(directory), plugins, status), read_roster())
    return 0


def _start(runner: Runner, roster: Roster) -> None:
    with open_listener(runner.job.id) as listener:
        _daemonize(runner, listener, roster.head.instance_id)


def _daemonize(runner: Runner, listener: socket.socket, head: str) -> None:
    """Fork three times: a watcher without a parent or terminal, and the runner as its child.

    Return when the runner has written its state.
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
    _forget_conductor((listener.fileno(), began_write))
    os.setsid()
    if os.fork():
        os._exit(0)
    try:
        _detach_streams(runner.directory)
        pid = os.fork()
        if pid == 0:
            runner.become(listener, began_write, head)
        os.close(began_write)
        listener.close()
        _settle_after(pid, runner.directory)
    except BaseException as error:
        _log(error)
    finally:
        os._exit(1)


def _forget_conductor(own: Tuple[int, ...]) -> None:
    """Close what a task's runner has from its array's conductor, and keep the memory that has the zipapp's modules.

    The conductor's sockets must end with it, and not with the last of its tasks.
    """
    signal.set_wakeup_fd(-1)
    for fd in {*map(int, os.listdir("/proc/self/fd"))} - {0, 1, 2, *own}:
        with suppress(OSError):  # that of the listing itself
            if not os.readlink(f"/proc/self/fd/{fd}").startswith("/memfd:"):
                os.close(fd)


def _detach_streams(directory: str) -> None:
    log = record.open_log(directory)
    null = os.open(os.devnull, os.O_RDWR)
    for target, fd in enumerate((null, log, log)):
        os.dup2(fd, target)
    os.close(null)
    os.close(log)
    os.chdir("/")


def _settle_after(runner: int, directory: str) -> None:
    """Settle the job when its runner is killed: the head may have no starter whose guard would do it.

    That is the case while a job waits in a scheduler's queue, or when it has no process on the head.
    """
    if os.waitpid(runner, 0)[1] == 0:
        os._exit(0)
    argv = checked.argv(os.path.join(directory, RUNNER), "settle", directory)
    os.execv(argv[0], argv)


class Runner:
    """A job's runner, from its start to the job's end."""

    def __init__(self, directory: str, job: JobRecord, plugins: Plugins, status: JobStatus) -> None:
        self.directory = directory
        self.job = job
        self.status = status
        self._plugins = plugins

    def become(self, listener: socket.socket, began: int, head: str) -> NoReturn:
        """Turn this process into the runner until the job's end; close `began` when its status is written."""
        status = 1
        # Its pid becomes known before there is a RunContext to handle the signal.
        signal.pthread_sigmask(signal.SIG_BLOCK, (STOP,))
        try:
            self.status = self.status._replace(runner=states.this_runner(head))
            states.write(self.directory, self.status)
            os.close(began)
            self.run(listener)
            status = 0
        except BaseException as error:
            _log(error)
        finally:
            os._exit(status)

    def run(self, listener: socket.socket) -> None:
        """Run all attempts of the job, and write a final state even after a failure."""
        supervisor: Union[Supervisor, Conductor, None] = None
        job = self.job
        try:
            scheduler = self._plugins.scheduler(job.via) if job.via else None
            context = RunContext(self.directory, listener)
            if job.array:
                supervisor = Conductor(self.directory, job, self.status, context, self._begin_task)
            else:
                launcher = self._plugins.launcher(job.launcher)
                supervisor = Supervisor(self.directory, job, launcher, self.status, context, scheduler)
            supervisor.run()
        except RefusedError as error:
            self._end_early(supervisor, str(error), 2)
        except Exception as error:
            _log(error)
            # Every starter ends its processes when the runner closes its channel.
            held = f" ({supervisor.unreturned})" if supervisor and supervisor.unreturned else ""
            self._end_early(supervisor, f"phalanx's runner failed: {error!r}; see {self.directory}/runner.log{held}", 1)

    def _begin_task(self, directory: str, task: JobRecord) -> None:
        begin(directory, task, self._plugins, read_roster())

    def _end_early(self, supervisor: Union[Supervisor, Conductor, None], message: str, exit_code: int) -> None:
        status = supervisor.status if supervisor else self.status
        over = {"state": JobState.FAILED, "message": message, "exit_code": exit_code, "ended_at": time.time()}
        states.write(self.directory, status._replace(**over))


def _log(error: BaseException) -> None:
    """Print a traceback. The module of that name takes 10 ms to import."""
    sys.excepthook(type(error), error, error.__traceback__)
