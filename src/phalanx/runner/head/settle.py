"""Ends a job whose runner is gone, or its part on a node whose connection broke, over new connections to the nodes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from phalanx.node import validate
from phalanx.runner import checked
from phalanx.runner.files import record
from phalanx.runner.files import state as states
from phalanx.runner.files.job_status import UNCHECKED, JobState, JobStatus, NodeVerdict
from phalanx.runner.files.schema import sweep_report
from phalanx.runner.head.membership import read_roster
from phalanx.runner.head.restarts import decide, with_lost
from phalanx.runner.liveness import FENCE_S
from phalanx.runner.login import command_on
from phalanx.runner.names import RUNNER
from phalanx.runner.reaper import GRACE_S, KILL_WAIT_S
from phalanx.runner.system import boot_id, roster_path

if TYPE_CHECKING:
    from typing import Any, Dict, Optional, Tuple

    from phalanx.node.roster import Node, Roster
    from phalanx.runner.files.job_status import RunnerIdentity

# A node that runs answers at once; the job's end must not wait long for one that does not.
_CONNECT_WITHIN_S = 3
# An sshd that reloads its configuration, as with each new roster, accepts no connection for some milliseconds.
_SSHD_AWAY = (b"Connection refused", b"Connection reset by peer")
_SSHD_BACK_WITHIN_S = 2.0
# A node whose shared directory answers has its answer sooner, unless processes do not end.
_FROM_HERE_AFTER_S = 5.0
_DEADLINE_S = _CONNECT_WITHIN_S + GRACE_S + KILL_WAIT_S + 5.0
_LOCK = "settle.lock"
_SETTLED_WITHIN_S = 30.0
_RESUMED_WITHIN_S = 60.0
_LOOK_EVERY_S = 0.05
_KILLED_WITHIN_S = 0.5
# So often another conductor goes on with an array: a bug or a job might kill each of them.
_CONDUCTORS = 20
# A killed runner's files are closed a moment before it counts as gone.
_RUNNER_GONE_WITHIN_S = 3.0
# What settles has ended long before that, or has itself been ended.
_AGAIN_AFTER_S = 120.0


class Inquiry:
    """Asks a node over a new connection, as soon as it is created, to end the job's processes there.

    A replacement with the node's name touches nothing and does not answer for it.
    """

    def __init__(self, directory: str, job_id: str, node: Node) -> None:
        self.boot_id = ""  # of the node that answered
        self._node = node.name
        self._deadline = time.monotonic() + _DEADLINE_S
        self._from_here_at = time.monotonic() + _FROM_HERE_AFTER_S
        self._runner = os.path.join(directory, RUNNER)
        self._command = lambda: command_on(
            node.name,
            node.head,
            self._runner,
            *("reap", job_id, node.instance_id),
            options=("-o", f"ConnectTimeout={_CONNECT_WITHIN_S}"),
        )
        self._ask()

    def _ask(self) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(self._command(), stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)

    def verdict(self) -> NodeVerdict:
        """Return the node's verdict, after waiting for its answer until the deadline."""
        ask_until = time.monotonic() + _SSHD_BACK_WITHIN_S
        try:
            out, err = self._answer()
            while any(text in err for text in _SSHD_AWAY) and time.monotonic() < ask_until:
                time.sleep(0.05)
                self._ask()
                out, err = self._answer()
        except subprocess.TimeoutExpired:
            self._end()
            return self._unverified(f"no answer within {_DEADLINE_S:g} s")
        # The runner reaps all children, this one too, so the exit code may be lost: only the answer counts.
        if out.endswith(b"}\n"):
            return self._from_answer(out.splitlines()[-1])
        reason = err.decode(errors="replace").strip().splitlines()
        return self._unverified(reason[-1] if reason else "no answer")

    def _answer(self) -> Tuple[bytes, bytes]:
        if self._runner != checked.STDIN:
            try:
                return self._heard(b"", self._from_here_at)
            except subprocess.TimeoutExpired:
                # The shared directory, which has the zipapp, may not answer.
                self._end()
                self._runner = checked.STDIN
                self._ask()
        return self._heard(checked.own_content(), self._deadline)

    def _heard(self, stdin: bytes, deadline: float) -> Tuple[bytes, bytes]:
        return self._process.communicate(stdin, max(0.1, deadline - time.monotonic()))

    def _end(self) -> None:
        """Kill the process. One that waits for another's look-up of the same name ends when the directory answers."""
        self._process.kill()
        for pipe in filter(None, (self._process.stdin, self._process.stdout, self._process.stderr)):
            with contextlib.suppress(OSError):
                pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_KILLED_WITHIN_S)

    def _from_answer(self, answer: bytes) -> NodeVerdict:
        try:
            report = sweep_report(validate.parse(answer))
        except validate.Invalid as error:
            return self._unverified(f"its answer {error}")
        self.boot_id = report["boot_id"]
        return NodeVerdict.of(self._node, report)

    def _unverified(self, reason: str) -> NodeVerdict:
        message = f"{UNCHECKED}: {reason}; it ends the job's processes by itself within {FENCE_S:g} s"
        return NodeVerdict(self._node, False, 0, message)


def settle(directory: str, is_stop: bool = False) -> JobStatus:
    """Return a job's status. If its runner is gone, first end its processes on all nodes, then restart it or mark it.

    It is marked as lost, or with `is_stop` as stopped and never restarted. A head without a roster leaves it as it is.
    """
    status = states.read(directory)
    if not _can_settle(status):
        return status
    lock = _open_lock(directory)
    try:
        if not _is_locked(lock):
            return status
        status = states.read(directory)
        return _settle(directory, status, is_stop) if _can_settle(status) else status
    finally:
        os.close(lock)


def _open_lock(directory: str) -> int:
    try:
        return record.open_to_append(os.path.join(directory, _LOCK))
    except OSError:  # a job may have put anything there
        states.set_aside(directory, _LOCK)
        return record.open_to_append(os.path.join(directory, _LOCK))


def _is_locked(lock: int) -> bool:
    """Return whether the lock was taken within the time that another process needs to settle the job."""
    deadline = time.monotonic() + _SETTLED_WITHIN_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
        time.sleep(_LOOK_EVERY_S)


def _can_settle(status: JobStatus) -> bool:
    return is_orphan(status) and os.path.exists(roster_path())


def _settle(directory: str, status: JobStatus, is_stop: bool) -> JobStatus:
    # Another version may have started the job, and the file there may be anything.
    checked.keep(os.path.join(directory, RUNNER))
    over = as_lost(status)
    if is_stop:
        over = over._replace(state=JobState.STOPPED, message=f"stopped on request; {over.message}")
    if status.allocation:
        unreturned = _run_verb(directory, "release")
        over = _with(over, unreturned)._replace(allocation=None)
    over = over._replace(nodes=verify(directory))
    restart, reason = (False, "") if is_stop else _decide(over)
    if restart:
        # A new runner takes the job over; this returns when it has written its state.
        problem = _run_verb(directory, "resume")
        if not problem:
            return states.read(directory)
        reason = f"it can't start again: {problem.splitlines()[-1]}"
    over = _with(over, reason)
    states.write(directory, over)
    return over


def _with(over: JobStatus, reason: str) -> JobStatus:
    return over._replace(message=f"{over.message} ({reason})") if reason else over


def settle_in_background(directory: str) -> None:
    """Settle in a process of its own; return at once."""
    argv, log = checked.argv(sys.argv[0], "settle", directory), record.open_log(directory)
    subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    os.close(log)


class Orphans:
    """Settles jobs whose runners are gone, in the background; again after a while, as what settles may end, too."""

    def __init__(self) -> None:
        self._at: Dict[Optional[RunnerIdentity], float] = {}

    def settle(self, directory: str, runner: Optional[RunnerIdentity]) -> None:
        """Settle the job in this directory, unless that has just begun."""
        now = time.monotonic()
        if runner not in self._at or now > self._at[runner] + _AGAIN_AFTER_S:
            self._at[runner] = now
            settle_in_background(directory)


def settle_patiently(directory: str) -> JobStatus:
    """Settle after the runner's connections have just closed: its process may need a moment to end."""
    deadline = time.monotonic() + _RUNNER_GONE_WITHIN_S
    while states.runner_lives(states.read(directory).runner) and time.monotonic() < deadline:
        time.sleep(_LOOK_EVERY_S)
    return settle(directory)


def is_orphan(status: JobStatus) -> bool:
    """Return whether a job's runner is gone and its state is not final."""
    return not status.state.final and not states.runner_lives(status.runner)


def as_lost(status: JobStatus) -> JobStatus:
    """Return the status that is shown for a job whose runner is gone and whose state is not final."""
    return status._replace(state=JobState.LOST, message=what_died(status), ended_at=time.time())


def is_foreign(status: JobStatus, stack: str) -> bool:
    """Return whether it is an orphan of another cluster, by the id of the stack.

    A shared directory outlives its clusters, and any earlier job could write a record that requests a restart. Its
    writer could not know the id of a later stack. Clusters that share a directory at the same time can; they can change
    each other's code anyway.
    """
    return status.stack != stack and is_orphan(status)


def left_alone(status: JobStatus) -> JobStatus:
    """Return the status that is shown for another cluster's job. Its record stays as it is: that cluster may live."""
    ended_at = status.started_at or status.submitted_at
    message = "a job of another cluster, which this one neither ends nor restarts"
    return status._replace(state=JobState.LOST, message=message, ended_at=ended_at)


def what_died(status: JobStatus) -> str:
    """Return why the runner is gone."""
    runner = status.runner
    try:
        with open(roster_path()) as file:
            head = validate.roster(file.read()).head.instance_id
    except (OSError, validate.Invalid):
        head = runner.head if runner else ""
    if runner and runner.head != head:
        return f"head lost: {runner.head} is gone, and the job's runner with it; the head is now {head}"
    if runner and runner.boot_id != boot_id():
        return "head lost: it was restarted, and the job's runner ended with it"
    return "the job's runner died (it was killed, or the head was out of memory)"


def verify(directory: str, of_tasks: bool = False) -> Tuple[NodeVerdict, ...]:
    """End what is left of a job on all nodes of its roster, because a process may have logged in to any of them.

    Of an array, this is what is left of its tasks, if that is asked for: they run on without their conductor.
    """
    job_id = states.job_id_of(directory) + "." * of_tasks
    inquiries = [Inquiry(directory, job_id, node) for node in _roster(directory).nodes]
    return tuple(inquiry.verdict() for inquiry in inquiries)


def _roster(directory: str) -> Roster:
    """Return the job's roster, or the present one: before its first plan a job has none, and runs only on the head."""
    try:
        return validate.roster(record.read_text(os.path.join(directory, "roster.json")))
    except (FileNotFoundError, validate.Invalid):
        return read_roster()


def _decide(lost: JobStatus) -> tuple[bool, str]:
    allowed = _CONDUCTORS if lost.tasks else lost.restarts
    if not allowed:
        return False, ""
    if lost.has_secrets:
        return False, "its secrets ended with the runner, so it can't start again by itself"
    # An attempt that its runner's end has ended may always be repeated, whatever exit codes are named.
    decision = decide(with_lost(lost.attempts, lost.message), allowed)
    return decision.restart, decision.reason


def _run_verb(directory: str, verb: str) -> str:
    """Run a verb that needs launchers or schedulers, which only the zipapp's __main__ has. Return an error, or ""."""
    argv = checked.argv(os.path.join(directory, RUNNER), verb, directory)
    options: Dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "errors": "replace"}
    try:
        done = subprocess.run(argv, timeout=_RESUMED_WITHIN_S, check=False, **options)
    except subprocess.TimeoutExpired:
        return f"`runner.pyz {verb}` did not end within {_RESUMED_WITHIN_S:g} s"
    return (done.stderr.strip() or f"exit code {done.returncode}") if done.returncode else ""
