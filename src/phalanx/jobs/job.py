"""Jobs from the caller's side: submit, follow, stop. The head's runner owns the job; this only asks."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from phalanx.errors import ClusterError, JobError
from phalanx.jobs import toolbox
from phalanx.jobs.head_command import HeadCommand, last_words
from phalanx.jobs.job_model import JobSpec, JobState, JobStatus, NodeVerdict
from phalanx.jobs.job_output import FollowDecoder, OutputLine
from phalanx.runner.checked import NOT_THERE
from phalanx.ssh.remote import Remote

if TYPE_CHECKING:
    from phalanx.code.bundle import SendProgress
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
_RECONNECT_WITHIN_S = 60.0
_STOP_WITHIN_S = 30.0
_ASK_AGAIN_S = 0.5
# Exit status of the head's shell when the job's directory is not there (sysexits' EX_NOINPUT; ssh itself has 255).
_DIRECTORY_GONE = 66


class ClusterAccess(Protocol):
    """What jobs need of a cluster: its shared directory, its stack, the head as the job user.

    `settle_by` says which command a new head is to run, as the job user, for the jobs of the one before.
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
    """Send the code and start the job; returns once the head has taken it. Raises JobError.

    The first `follow` goes on over the same connection, unless `detach`.
    """
    job = Job(cluster, _new_id())
    connection = _begin(job, cluster, spec, detach)
    try:
        from phalanx.jobs.submission import Submission

        submission = Submission(spec, progress or (lambda _: None))
        connection = _with_runner(connection, job, cluster, spec, detach)
    except BaseException:
        connection.close()
        raise
    try:
        connection.send(lambda out: submission.write(out, connection))
        cluster.settle_by(_listing(cluster))
        job._accept(connection, detach)
        if detach:
            _report_sharing(connection.answer("shares"), spec, progress)
            connection.close()
    except KeyboardInterrupt:
        job._abandon(connection)
        raise
    return job


def _report_sharing(shares: str, spec: JobSpec, progress: Callable[[SendProgress], None] | None) -> None:
    """Of a job that nobody follows: that it has no slots to itself."""
    if shares and progress:
        from phalanx.code.bundle import SendProgress

        progress(SendProgress(0, 0, 0, f"the job {'waits for' if spec.wait else 'runs on'} {shares}"))


def _begin(job: Job, cluster: ClusterAccess, spec: JobSpec, detach: bool) -> HeadCommand:
    """The head is told what the job is: it starts Python and dials the nodes while this machine looks at the code."""
    record = json.dumps({**spec.to_record(job.id), "stack": cluster.stack_id}).encode()
    command = toolbox.command(cluster.shared, "submit", job.directory, *(["--detach"] if detach else []))
    connection = HeadCommand(cluster.remote(), command, stdin=subprocess.PIPE)
    connection.offer(b'{"record": %d}\n%b' % (len(record), record))
    return connection


def _with_runner(connection: HeadCommand, job: Job, cluster: ClusterAccess, spec: JobSpec, detach: bool) -> HeadCommand:
    """This connection, or another one after the runner was sent to a head that did not have it. Raises JobError."""
    if connection.begins():
        return connection
    connection.close()
    toolbox.put(cluster.remote(), cluster.shared)
    connection = _begin(job, cluster, spec, detach)
    if not connection.begins():
        refusal = connection.refusal("the head did not take the job", "its runner is not what was sent there")
        connection.close()
        raise refusal
    return connection


def processes(launcher: Launcher, spec: JobSpec, roster: Roster) -> Sequence[Process]:
    """What `submit` would start on this roster, but for the job's id and port. Raises JobError when it does not fit."""
    # Here, because only a dry run needs them.
    from phalanx.runner.process import JobDescription, RefusedError, planned

    record = {**spec.to_record("JOB"), "secrets": spec.secrets}
    description = JobDescription.from_record(record, f"{JOBS}/JOB")
    try:
        return planned(launcher, description, roster)
    except RefusedError as error:
        raise JobError(*str(error).split("\n", 1)) from error


def list_jobs(cluster: ClusterAccess) -> list[JobStatus]:
    """All jobs that the shared directory knows, newest first."""
    done = toolbox.run(cluster.remote(), cluster.shared, _listing(cluster), timeout_s=30.0)
    return list(_statuses(done.stdout))


def _listing(cluster: ClusterAccess) -> str:
    """The command that lists all jobs, and settles those of this cluster that lost their runner."""
    root = f"{cluster.shared}/{JOBS}"
    return f"[ -d {shlex.quote(root)} ] || exit 0; {toolbox.command(cluster.shared, 'list', root, cluster.stack_id)}"


def _statuses(answer: bytes) -> Iterator[JobStatus]:
    """What each line says of a job; a login script may have written others."""
    for line in answer.splitlines():
        with contextlib.suppress(JobError):
            yield JobStatus.from_line(line)


def open_job(cluster: ClusterAccess, reference: str | None = None) -> Job:
    """A job by its id, what only its id begins or ends with, or its name (the newest of that name); None: the newest.

    Raises JobError when there is none.
    """
    jobs = list_jobs(cluster)
    if not jobs:
        raise JobError(f"cluster {cluster.name} has no jobs", "`phalanx run -- COMMAND` starts one.")
    if reference is None:
        return Job(cluster, jobs[0].id)
    if not reference:
        raise JobError("the job's name is empty", "Say its id or name; without a word, the newest is meant.")
    exact = [job.id for job in jobs if reference in (job.id, job.name)]
    near = [job.id for job in jobs if job.id.startswith(reference) or job.id.endswith(reference)]
    if exact or len(near) == 1:
        return Job(cluster, (exact or near)[0])
    if near:
        raise JobError(f"'{reference}' is the id of {len(near)} jobs", f"Say more of it: {', '.join(near[:5])}")
    raise JobError(
        f"there is no job '{reference}' on cluster {cluster.name}",
        f"The newest is {jobs[0].id}; `phalanx jobs` lists them.",
    )


class _StopAnswer(NamedTuple):
    """What the head said when it was asked to stop a job: its final status, if it had begun at all."""

    stopped: JobStatus | None
    is_gone: bool
    stderr: str

    @property
    def is_over(self) -> bool:
        """Nothing of the job runs, and nothing will."""
        return self.is_gone or self.stopped is not None


class Job:
    """A handle on one job of a cluster; it holds no state of the job."""

    def __init__(self, cluster: ClusterAccess, id: str) -> None:
        self.id = id
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
    ) -> Iterator[OutputLine | JobStatus]:
        """Output in merged order and the status at each change; the last thing is the final status.

        A broken connection is made again, from where it broke, for up to 60 s. `wait=False`: what is there by now and
        the present status. `process`: one rank (or an engine's label) alone. `attempt`: one that is over, by its number
        from 0, or -1: the present one and those after it. `tail`: of what is there by now, only so many last lines.
        `drafts`: lines that are written over come as they change, too. Raises JobError, ClusterError.
        """
        start = "end" if not from_start else "0" if attempt is None else "last" if attempt < 0 else f"attempt={attempt}"
        words = [] if wait else ["--no-wait"]
        words += [] if process is None else ["--process", process]
        if tail is None:
            return self._follow(FollowDecoder(drafts), start, words)
        return _last_lines(self._follow(FollowDecoder(drafts), start, words, ["--lines", str(tail)]), tail)

    def status(self) -> JobStatus:
        """How it stands."""
        for status in list_jobs(self._cluster):
            if status.id == self.id:
                return status
        raise JobError(f"job {self.id} is not on cluster {self._cluster.name}")

    def wait(self, timeout_s: float | None = None) -> JobStatus:
        """The final status. Raises JobError when it has not ended within timeout_s."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        for event in self._follow(FollowDecoder(), "end", [], deadline=deadline):
            if isinstance(event, JobStatus) and event.state.final:
                return event
        raise JobError(f"job {self.id} did not end within {timeout_s:g} s")

    def stop(self, timeout_s: float = _STOP_WITHIN_S) -> JobStatus:
        """End it on all nodes, proved; returns the final status, also when it had ended already."""
        done = self._ask_to_stop(timeout_s)
        if done.stopped is None:
            raise JobError(f"job {self.id} can't be stopped: {last_words(done.stderr)}")
        return done.stopped

    def _ask_to_stop(self, timeout_s: float) -> _StopAnswer:
        # Beyond the runner's own deadline, the nodes may have to be asked over new connections.
        remote, shared, command = self._cluster.remote(), self._cluster.shared, self._verb("stop", f"{timeout_s:g}")
        done = toolbox.run(remote, shared, command, timeout_s=timeout_s + 60, check=False)
        records = [line for line in done.stdout.splitlines() if line.startswith(b"{")]
        stopped = JobStatus.from_line(records[-1]) if records else None
        return _StopAnswer(stopped, done.status == _DIRECTORY_GONE, done.stderr.decode(errors="replace"))

    def _verb(self, verb: str, *words: str) -> str:
        command = toolbox.command(self._cluster.shared, verb, self.directory, self._cluster.stack_id, *words)
        return f"[ -d {shlex.quote(self.directory)} ] || exit {_DIRECTORY_GONE}; {command}"

    def _accept(self, connection: HeadCommand, detach: bool) -> None:
        """The head has taken the job: the follower's first bytes are there, or (detached) the command ended well."""
        if not (connection.end_within(_ACCEPTED_WITHIN_S) if detach else connection.begins_within(_ACCEPTED_WITHIN_S)):
            refusal = connection.refusal("the head did not take the job", f"no answer within {_ACCEPTED_WITHIN_S:g} s")
            connection.close()
            raise refusal
        if not detach:
            self._connection = connection

    def _abandon(self, connection: HeadCommand) -> None:
        """The head may be taking it, but nobody has been told its id: it must not run on unseen."""
        try:
            connection.begins_within(_ACCEPTED_WITHIN_S)
            deadline = time.monotonic() + _ACCEPTED_WITHIN_S
            # It may still be unpacking what has come, and find that it is not all.
            while not self._ask_to_stop(_STOP_WITHIN_S).is_over and time.monotonic() < deadline:
                time.sleep(_ASK_AGAIN_S)
        except (JobError, ClusterError):
            return
        finally:
            connection.close()

    def _follow(
        self,
        decoder: FollowDecoder,
        start: str,
        words: Sequence[str],
        at_first: Sequence[str] = (),
        deadline: float | None = None,
    ) -> Iterator[OutputLine | JobStatus]:
        """`words` are the options of the head's `follow`, `at_first` those of the first connection besides."""
        connection = self._first_connection(start, [*words, *at_first])
        silent_since = time.monotonic()
        while True:
            try:
                for data in connection.chunks(deadline):
                    silent_since = time.monotonic()
                    for event in decoder.feed(data):
                        told = event if isinstance(event, OutputLine) else JobStatus.from_record(event)
                        yield told
                        if isinstance(told, JobStatus) and told.state.final:
                            return  # nothing comes after it but the ends of two processes
                if (deadline and time.monotonic() > deadline) or (status := connection.end()) == 0:
                    return
                self._see_to_it_that_it_is_there(status)
                failure = connection.last_words()
            finally:
                connection.close()
            connection = self._again(decoder, words, failure, silent_since)

    def _see_to_it_that_it_is_there(self, status: int) -> None:
        if status == NOT_THERE:
            toolbox.put(self._cluster.remote(), self._cluster.shared)
        if status == _DIRECTORY_GONE:
            raise JobError(
                f"job {self.id} is lost: its directory {self.directory} was removed, and with it its state and output",
                "Without it the job's runner and all its processes end. `phalanx jobs` lists the others.",
            )

    def _first_connection(self, start: str, words: Sequence[str]) -> HeadCommand:
        connection, self._connection = self._connection, None
        if connection and not words:
            return connection
        if connection:
            connection.close()
        return self._open(start, words)

    def _open(self, position: str, words: Sequence[str]) -> HeadCommand:
        return HeadCommand(self._cluster.remote(), self._verb("follow", position, *words), stdin=subprocess.DEVNULL)

    def _again(self, decoder: FollowDecoder, words: Sequence[str], failure: str, silent_since: float) -> HeadCommand:
        """A new connection from where the old one broke. Raises JobError when there has been none for too long."""
        pause_s = 0.5
        while time.monotonic() < silent_since + _RECONNECT_WITHIN_S:
            time.sleep(pause_s)
            pause_s = min(5.0, pause_s * 2)
            try:
                connection = self._open(str(decoder.position), words)
            except ClusterError as error:
                failure = error.message
                continue
            decoder.restart()
            return connection
        raise JobError(
            f"the connection to job {self.id} broke: {failure or 'no words'}",
            f"How the job stands is not known here: `phalanx jobs` asks again, `phalanx logs -f {self.id}` follows it.",
        )


def _last_lines(events: Iterator[OutputLine | JobStatus], lines: int) -> Iterator[OutputLine | JobStatus]:
    """Of what comes before the first status, which ends what was there already, only so many last lines."""
    there: deque[OutputLine] = deque(maxlen=lines)
    for event in events:
        if isinstance(event, JobStatus):
            yield from there
            yield event
            break
        if not event.is_draft:
            there.append(event)
    yield from events


def _new_id() -> str:
    return time.strftime("%y%m%d-%H%M%S-", time.gmtime()) + os.urandom(3).hex()
