"""Jobs from the caller's side: submit, follow, stop. The runner on the head owns the job; this only sends requests."""

from __future__ import annotations

import contextlib
import json
import secrets
import shlex
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

from phalanx.code.bundle import SendProgress
from phalanx.errors import ClusterError, ClusterGone, JobError, SharedSilent
from phalanx.jobs import toolbox
from phalanx.jobs.halting import halt
from phalanx.jobs.head_command import HeadCommand, error_tail
from phalanx.jobs.job_model import JobSpec, check_names, status_in, status_of
from phalanx.jobs.job_output import FollowDecoder, OutputLine
from phalanx.jobs.submission import Submission
from phalanx.runner.checked import UNAVAILABLE
from phalanx.runner.files.array import array_of
from phalanx.runner.files.job_status import JobState, JobStatus, NodeVerdict
from phalanx.runner.files.schema import LONGEST_GRACE_S
from phalanx.runner.process import PreparedJob, RefusedError, planned
from phalanx.ssh import head_answers
from phalanx.ssh.remote import Remote
from phalanx.waits import waiting

if TYPE_CHECKING:
    from phalanx.node.roster import Roster
    from phalanx.runner.process import Launcher, Process

__all__ = [
    "ClusterAccess",
    "Job",
    "JobSpec",
    "JobState",
    "JobStatus",
    "NodeVerdict",
    "OutputLine",
    "list_jobs",
    "open_job",
    "processes",
    "submit",
]

JOBS = ".phalanx/jobs"
_ACCEPTED_WITHIN_S = 60.0
_RECONNECT_WITHIN_S = 600.0  # a dead head is replaced within minutes
_STOP_WITHIN_S = 30.0
_RETRY_S = 0.5
_REMOVED: dict[str, head_answers.Check] = {
    **dict.fromkeys(("id", "state"), head_answers.text),
    "removed_at": head_answers.time_s,
}
# Exit status of the head's shell when the job's directory is missing (sysexits' EX_NOINPUT; ssh itself uses 255).
_DIRECTORY_GONE = 66


class ClusterAccess(Protocol):
    """What jobs need of a cluster: its shared directory, its stack, and ssh to the head as the job user.

    `settle_by` sets the command that a new head runs, as the job user, for the jobs of the previous head.
    """

    @property
    def name(self) -> str: ...
    @property
    def shared(self) -> str: ...
    @property
    def stack_id(self) -> str: ...
    def settle_by(self, command: str) -> None: ...
    def remote(self) -> Remote: ...


def submit(
    cluster: ClusterAccess,
    spec: JobSpec,
    *,
    detach: bool = False,
    progress: Callable[[SendProgress], None] | None = None,
) -> Job:
    """Send the code and start the job; return once the head has accepted it. Raises JobError.

    The first `follow` uses the same connection, unless `detach`. If that breaks before all was sent, which leaves no
    job, the job is sent again over a new one, with another id.
    """
    if spec.resume:
        spec = replace(spec, resume=open_job(cluster, spec.resume).id)
    if spec.after or spec.after_any:
        after, after_any = (tuple(open_job(cluster, one).id for one in ids) for ids in (spec.after, spec.after_any))
        spec = replace(spec, after=after, after_any=after_any)
    report = progress or (lambda _: None)
    sends_again = SendProgress(0, 0, 0, "the connection to the head broke; the job is sent again, as another one")
    return toolbox.persist(cluster.remote, lambda: _submit(cluster, spec, detach, report), lambda: report(sends_again))


def _submit(cluster: ClusterAccess, spec: JobSpec, detach: bool, report: Callable[[SendProgress], None]) -> Job:
    job = Job(cluster, _new_id())
    connection = _begin(job, cluster, spec, detach)
    try:
        submission = Submission(spec, report)
        with waiting("the head to accept the job"):
            connection = _with_runner(connection, job, cluster, spec, detach)
            plan = connection.plan()
        report(SendProgress(0, 0, 0, opening=submission.opening(job.id, plan)))
    except BaseException:
        connection.close()
        raise
    try:
        with waiting("the code to arrive at the head"):
            connection.send(lambda out: submission.write(out, connection))
        cluster.settle_by(_listing(cluster))
        with waiting("the head to accept the job"):
            job._accept(connection, detach)
        if detach:
            _report_sharing(connection.answer("shares"), spec, report)
            connection.close()
    except KeyboardInterrupt:
        job._abandon(connection)
        raise
    return job


def _report_sharing(shares: str, spec: JobSpec, report: Callable[[SendProgress], None]) -> None:
    """Report that a detached job has no slots to itself."""
    if shares:
        report(SendProgress(0, 0, 0, f"the job {'waits for' if spec.wait else 'runs on'} {shares}"))


def _begin(job: Job, cluster: ClusterAccess, spec: JobSpec, detach: bool) -> HeadCommand:
    """Send the job's record: the head starts Python and connects to the nodes while this machine scans the code."""
    sent = replace(spec, id=job.id, stack=cluster.stack_id, submitted_at=time.time())
    record = json.dumps(sent.to_record()).encode()
    command = toolbox.command(cluster.shared, "submit", job.directory, *(["--detach"] if detach else []))
    connection = HeadCommand(cluster.remote(), command, stdin=subprocess.PIPE)
    connection.offer(b'{"record": %d}\n%b' % (len(record), record))
    return connection


def _with_runner(connection: HeadCommand, job: Job, cluster: ClusterAccess, spec: JobSpec, detach: bool) -> HeadCommand:
    """Return this connection, or a new one after sending the runner to a head without it. Raises JobError."""
    if connection.is_silent(toolbox.PATIENCE_S):
        toolbox.require_answer(cluster.remote(), cluster.shared)
    if connection.begins():
        return connection
    connection.close()
    toolbox.put(cluster.remote(), cluster.shared)
    connection = _begin(job, cluster, spec, detach)
    if not connection.begins():
        refusal = connection.refusal("the head did not accept the job", "its runner is not the one that was sent")
        connection.close()
        raise refusal
    return connection


def processes(launcher: Launcher, spec: JobSpec, roster: Roster) -> Sequence[Process]:
    """Return what `submit` would start on this roster, without the job's id and port. Raises JobError for a misfit."""
    try:
        return planned(launcher, PreparedJob.of(replace(spec, id="JOB"), f"{JOBS}/JOB"), roster)
    except RefusedError as error:
        raise JobError(*str(error).split("\n", 1), code=error.code) from error


def list_jobs(cluster: ClusterAccess, array: str = "") -> list[JobStatus]:
    """Return all jobs on the shared directory, newest first; of arrays no tasks, or only those of this array."""
    done = toolbox.run(cluster.remote(), cluster.shared, _listing(cluster, array), timeout_s=30.0)
    return [status for status in _statuses(done.stdout) if array_of(status.id) == array]


def _listing(cluster: ClusterAccess, array: str = "") -> str:
    """Return the command that lists all jobs, and settles those of this cluster that lost their runner."""
    root = f"{cluster.shared}/{JOBS}"
    command = toolbox.command(cluster.shared, "list", root, cluster.stack_id, *([array] if array else []))
    return f"[ -d {shlex.quote(root)} ] || exit 0; {command}"


def _statuses(answer: bytes) -> Iterator[JobStatus]:
    """Yield the status on each line, skipping lines that a login script may have written."""
    for line in answer.splitlines():
        with contextlib.suppress(JobError):
            yield status_in(line)


def open_job(cluster: ClusterAccess, reference: str | None = None) -> Job:
    """Return a job by its id, the beginning or end of its id, or its name (the newest of that name); None: the newest.

    A task of an array is named as its array, with its number: mnist.3. Raises JobError when no job, or more than one,
    matches.
    """
    jobs = list_jobs(cluster)
    if reference and not any(_is_meant(reference, job) for job in jobs):
        if (array := array_of(reference)) and any(_is_meant(array, job) for job in jobs):
            return _task(cluster, _found(cluster, jobs, array), reference)
        _refuse_removed(cluster, reference)
    job_id = _found(cluster, jobs, reference)
    return Job(cluster, job_id, any(job.id == job_id and job.tasks for job in jobs))


def _task(cluster: ClusterAccess, array: str, reference: str) -> Job:
    """Return this task of an array. Raises JobError."""
    number = reference.rpartition(".")[2]
    tasks = [job.id for job in list_jobs(cluster, array)]
    if (job_id := f"{array}.{number}") in tasks:
        return Job(cluster, job_id)
    begun = f"`phalanx jobs {array}` lists them." if tasks else "None has begun."
    raise JobError(f"job {array} has no task {number} that has begun", begun, code="no-job")


def _found(cluster: ClusterAccess, jobs: Sequence[JobStatus], reference: str | None) -> str:
    """Return the id of the job that is meant. Raises JobError."""
    if not jobs:
        raise JobError(f"cluster {cluster.name} has no jobs", "`phalanx run -- COMMAND` starts one.", code="no-job")
    if reference is None:
        return jobs[0].id
    if not reference:
        raise JobError(
            "the job's name is empty",
            "Give its id or name, or leave the argument out for the newest job.",
            code="no-job",
        )
    exact = [job.id for job in jobs if reference in (job.id, job.name)]
    near = [job.id for job in jobs if _is_meant(reference, job)]
    if exact or len(near) == 1:
        return (exact or near)[0]
    if near:
        raise JobError(
            f"'{reference}' matches the ids of {len(near)} jobs",
            f"Give more of the id: {', '.join(near[:5])}",
            code="ambiguous-job",
        )
    raise JobError(
        f"there is no job '{reference}' on cluster {cluster.name}",
        f"The newest is {jobs[0].id}; `phalanx jobs` lists them.",
        code="no-job",
    )


def _is_meant(reference: str, job: JobStatus) -> bool:
    return reference == job.name or job.id.startswith(reference) or job.id.endswith(reference)


def _refuse_removed(cluster: ClusterAccess, reference: str) -> None:
    """Raise JobError if `jobs --prune` has removed this job."""
    root = f"{cluster.shared}/{JOBS}"
    command = f"[ -d {shlex.quote(root)} ] || exit 0; {toolbox.command(cluster.shared, 'removed', root, reference)}"
    for line in toolbox.run(cluster.remote(), cluster.shared, command, timeout_s=30.0).stdout.splitlines():
        if line.startswith(b'{"'):
            job = head_answers.required(head_answers.parsed(line), _REMOVED)
            day = time.strftime("%Y-%m-%d", time.gmtime(job["removed_at"]))
            raise JobError(
                f"job {job['id']} ({job['state']}) was removed by `phalanx jobs --prune` on {day}",
                "Its output and what it wrote in its copy of the code are gone; checkpoints stay.",
                code="job-removed",
            )


class _StopAnswer(NamedTuple):
    """The head's answer to a request to stop a job: the final status, if the job had begun at all."""

    stopped: JobStatus | None
    is_gone: bool
    stderr: str

    @property
    def is_over(self) -> bool:
        """Whether nothing of the job runs, and nothing will."""
        return self.is_gone or self.stopped is not None


class Job:
    """A handle on one job of a cluster; it holds no state of the job. `has_tasks`: it is an array."""

    def __init__(self, cluster: ClusterAccess, id: str, has_tasks: bool = False) -> None:
        self.id = id
        self.has_tasks = has_tasks
        self._cluster = cluster
        self._connection: HeadCommand | None = None

    @property
    def directory(self) -> str:
        """Its directory, the same path on every node."""
        return f"{self._cluster.shared}/{JOBS}/{self.id}"

    def follow(
        self,
        *,
        from_start: bool = True,
        wait: bool = True,
        process: str | None = None,
        attempt: int | None = None,
        tail: int | None = None,
        drafts: bool = False,
        stream: str | None = None,
    ) -> Iterator[OutputLine | JobStatus]:
        """Yield output in merged order and the status at each change, last the final status.

        A broken connection is restored for up to 600 s. With `wait=False`, yield the output so far and the status.
        `process` selects one rank, or an engine by its label. `attempt` selects an attempt that has ended, by its
        number from 0; -1 is the present one and those after it. `stream` ("stdout" or "stderr") selects one. `tail`
        limits the output so far to its last lines. With `drafts`, lines that their process overwrites come as they
        change, too. Raises JobError, ClusterError.
        """
        start = "end" if not from_start else "0" if attempt is None else "last" if attempt < 0 else f"attempt={attempt}"
        options = [] if wait else ["--no-wait"]
        options += [] if process is None else ["--process", process]
        # The head counts the lines of both streams.
        first_options = [] if tail is None or stream else ["--lines", str(tail)]
        events = self._follow(FollowDecoder(drafts), start, options, first_options)
        if stream:
            events = (one for one in events if not isinstance(one, OutputLine) or one.stream == stream)
        return events if tail is None else _last_lines(events, tail)

    def tasks(self) -> list[Job]:
        """Return the tasks of an array that have begun, by their numbers."""
        ids = (status.id for status in list_jobs(self._cluster, self.id))
        return [Job(self._cluster, one) for one in sorted(ids, key=lambda one: (len(one), one))]

    def status(self) -> JobStatus:
        """Return the job's present status. Raises JobError when the cluster does not have the job."""
        for status in list_jobs(self._cluster, array_of(self.id)):
            if status.id == self.id:
                return status
        raise JobError(f"job {self.id} is not on cluster {self._cluster.name}", code="no-job")

    def wait(self, timeout_s: float | None = None) -> JobStatus:
        """Wait for the final status. Raises JobError when the job has not ended within timeout_s."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        for event in self._follow(FollowDecoder(), "end", [], deadline=deadline):
            if isinstance(event, JobStatus) and event.state.final:
                return event
        raise JobError(f"job {self.id} did not end within {timeout_s:g} s", code="job-timeout")

    def stop(self, timeout_s: float = _STOP_WITHIN_S) -> JobStatus:
        """End the job on all nodes, with proof; return the final status, also when it had already ended."""
        try:
            done = self._request_stop(timeout_s)
        except SharedSilent as silence:
            return halt(self._cluster.remote(), self._cluster.shared, self.id, silence)
        if done.stopped is None:
            raise JobError(f"job {self.id} can't be stopped: {error_tail(done.stderr)}", code="job-not-stopped")
        return done.stopped

    def label(self, name: str | None = None, tags: Mapping[str, str] | None = None) -> JobStatus:
        """Give the job another name, and these tags besides its own; "" removes one. Return its status.

        Raises JobError for what can't be a name or a tag.
        """
        check_names(name or None, {key: value for key, value in (tags or {}).items() if value})
        change = {**({} if name is None else {"name": name}), "tags": dict(tags or {})}
        there, command = (self._cluster.remote(), self._cluster.shared), self._verb("label", json.dumps(change))
        done = toolbox.run(*there, command, timeout_s=60, check=False)
        records = [line for line in done.stdout.splitlines() if line.startswith(b"{")]
        if not records:
            why = error_tail(done.stderr.decode(errors="replace")) or "its runner does not answer"
            raise JobError(f"job {self.id} can't be changed: {why}", code="job-not-changed")
        return status_in(records[-1])

    def _request_stop(self, timeout_s: float) -> _StopAnswer:
        # After the runner's own deadline, the nodes may have to be asked over new connections.
        there, command = (self._cluster.remote(), self._cluster.shared), self._verb("stop", f"{timeout_s:g}")
        done = toolbox.run(*there, command, timeout_s=timeout_s + LONGEST_GRACE_S + 60, check=False)
        records = [line for line in done.stdout.splitlines() if line.startswith(b"{")]
        stopped = status_in(records[-1]) if records else None
        return _StopAnswer(stopped, done.status == _DIRECTORY_GONE, done.stderr.decode(errors="replace"))

    def _verb(self, verb: str, *args: str) -> str:
        command = toolbox.command(self._cluster.shared, verb, self.directory, self._cluster.stack_id, *args)
        return f"[ -d {shlex.quote(self.directory)} ] || exit {_DIRECTORY_GONE}; {command}"

    def _accept(self, connection: HeadCommand, detach: bool) -> None:
        """Wait until the head has accepted the job: the follower's first bytes came, or (detached) exit status 0."""
        if not (connection.end_within(_ACCEPTED_WITHIN_S) if detach else connection.begins_within(_ACCEPTED_WITHIN_S)):
            silence = f"no answer within {_ACCEPTED_WITHIN_S:g} s"
            refusal = connection.refusal("the head did not accept the job", silence)
            connection.close()
            raise refusal
        if not detach:
            self._connection = connection

    def _abandon(self, connection: HeadCommand) -> None:
        """Stop a job that the head may be accepting: the user does not know its id, so it must not run on unseen."""
        try:
            connection.begins_within(_ACCEPTED_WITHIN_S)
            deadline = time.monotonic() + _ACCEPTED_WITHIN_S
            # The head may still be unpacking what has arrived, and find it incomplete.
            while not self._request_stop(_STOP_WITHIN_S).is_over and time.monotonic() < deadline:
                time.sleep(_RETRY_S)
        except (JobError, ClusterError):
            return
        finally:
            connection.close()

    def _follow(
        self,
        decoder: FollowDecoder,
        start: str,
        options: Sequence[str],
        first_options: Sequence[str] = (),
        deadline: float | None = None,
    ) -> Iterator[OutputLine | JobStatus]:
        """Follow with these options of the head's `follow`; the first connection has `first_options`, too."""
        connection = self._first_connection(start, [*options, *first_options])
        silent_since = time.monotonic()
        while True:
            try:
                for data in connection.chunks(deadline):
                    silent_since = time.monotonic()
                    for event in decoder.feed(data):
                        received = event if isinstance(event, OutputLine) else status_of(event)
                        yield received
                        if isinstance(received, JobStatus) and received.state.final:
                            return  # only the ends of the connection's two processes come after it
                if (deadline and time.monotonic() > deadline) or (status := connection.end()) == 0:
                    return
                self._restore_runner(status)
                failure = connection.error_tail()
            finally:
                connection.close()
            with waiting("a new connection to the job"):
                connection = self._reconnect(decoder, options, failure, silent_since)

    def _restore_runner(self, status: int) -> None:
        """Send the zipapp to a head that lacks it. Raises JobError when the job's directory is missing."""
        if status == UNAVAILABLE:
            toolbox.put(self._cluster.remote(), self._cluster.shared)
        if status == _DIRECTORY_GONE:
            raise JobError(
                f"job {self.id} is lost: its directory {self.directory} was removed, and with it its state and output",
                "Its runner and all its processes end without it. `phalanx jobs` lists the other jobs.",
                code="job-lost",
            )

    def _first_connection(self, start: str, options: Sequence[str]) -> HeadCommand:
        connection, self._connection = self._connection, None
        if connection and not options:
            return connection
        if connection:
            connection.close()
        return self._open(start, options)

    def _open(self, position: str, options: Sequence[str]) -> HeadCommand:
        return HeadCommand(self._cluster.remote(), self._verb("follow", position, *options), stdin=subprocess.DEVNULL)

    def _reconnect(
        self, decoder: FollowDecoder, options: Sequence[str], failure: str, silent_since: float
    ) -> HeadCommand:
        """Return a new connection that continues where the old one broke. Raises JobError after too long a silence."""
        pause_s = 0.5
        while time.monotonic() < silent_since + _RECONNECT_WITHIN_S:
            time.sleep(pause_s)
            pause_s = min(5.0, pause_s * 2)
            try:
                connection = self._open(str(decoder.position), options)
                decoder.restart()
                return connection
            except ClusterGone as gone:
                raise JobError(f"job {self.id} is lost: {gone.message}", gone.hint, code="job-lost") from gone
            except ClusterError as error:
                failure = error.message
        raise JobError(
            f"the connection to job {self.id} broke for {_RECONNECT_WITHIN_S:g} s: {failure or 'no message'}",
            f"It may still run: see `phalanx status` for the head, then follow it with `phalanx logs -f {self.id}`.",
            code="connection-lost",
        )


def _last_lines(events: Iterator[OutputLine | JobStatus], lines: int) -> Iterator[OutputLine | JobStatus]:
    """Yield only the last lines, this many of the output so far, which the first status ends, and then everything."""
    last: deque[OutputLine] = deque(maxlen=lines)
    for event in events:
        if isinstance(event, JobStatus):
            yield from last
            yield event
            break
        if not event.is_draft:
            last.append(event)
    yield from events


def _new_id(now_ns: int | None = None) -> str:
    """Return the id of a new job: ids sort by time to a 4096th of a second, because many jobs are shorter than one."""
    seconds, rest_ns = divmod(time.time_ns() if now_ns is None else now_ns, 10**9)
    at = time.strftime("%y%m%d-%H%M%S", time.gmtime(seconds))
    return f"{at}-{rest_ns * 4096 // 10**9:03x}{secrets.randbits(12):03x}"
