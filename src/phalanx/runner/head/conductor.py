"""Runs the tasks of an array: each is a job with a runner of its own, begun when the one before has its slots.

What it knows it reads from the tasks' records, so another conductor, on another head, can go on.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from phalanx.node.validate import Invalid
from phalanx.objects import trees
from phalanx.runner.files import state as states
from phalanx.runner.files.array import task_id, tasks_in
from phalanx.runner.files.job_status import JobState, JobStatus, NodeVerdict
from phalanx.runner.files.output import OutputReader
from phalanx.runner.head.membership import read_roster
from phalanx.runner.head.predecessors import Predecessors
from phalanx.runner.head.runner_socket import STOP_WISH, connect_follower
from phalanx.runner.head.settle import Orphans, is_orphan, verify
from phalanx.runner.names import KEPT_THERE, LIBRARY, OUTPUT, RECORD, STDIN, WORK
from phalanx.runner.process import RefusedError
from phalanx.runner.system import PR_SET_PDEATHSIG, prctl
from phalanx.runner.verbs import checkpoints

if TYPE_CHECKING:
    import socket
    from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

    from phalanx.runner.files.job_record import JobRecord
    from phalanx.runner.head.run_context import RunContext

_LOOK_EVERY_S = 0.5
_WRITE_EVERY_S = 0.25
# Each has two processes on the head.
_MOST_AT_ONCE = 256
# So many records of output are taken at once: a job can write what it likes into its index.
_RECORDS_AT_ONCE = 10_000
_MOST_NAMED = 5
# Of what a task's record says, so much is taken over, so that the array's own can be read.
_LONGEST = 1000
_FAILED = 1
# A task without --wait-limit waits for the others as long as these run.
_NO_LIMIT_S = 10 * 365 * 86400


class Conductor:
    """Owns an array's state; `begin` starts the runner of a task in its directory."""

    def __init__(
        self,
        directory: str,
        job: JobRecord,
        status: JobStatus,
        context: RunContext,
        begin: Callable[[str, JobRecord], None],
    ) -> None:
        self.status = status
        self.unreturned = ""  # of a supervisor: its tasks give their own allocations back
        self._directory, self._job, self._context, self._begin = directory, job, context, begin
        context.socket.label = lambda label: self._write(**label)
        self._wanted = tasks_in(job.array or "0")
        self._at_once = min(self._wanted.at_once or _MOST_AT_ONCE, _MOST_AT_ONCE)
        self._left = list(reversed(self._wanted.indices))
        self._tasks: Dict[int, _Task] = {}  # those that have begun
        self._write_at = self._look_at = 0.0

    def run(self) -> None:
        """Run the tasks until the array's final state is written."""
        if not self.status.started_at and (self._job.after or self._job.after_any):
            predecessors = Predecessors(os.path.dirname(self._directory), self._job)
            over = predecessors.wait(self._context, lambda text: self._write(message=f"waiting for {text}"))
            if over:
                self._end(over)
                return
        self._write(state=JobState.RUNNING, started_at=self.status.started_at or time.time(), message="")
        self._take_over()
        while True:
            self._pass_on_stops()
            self._begin_next()
            if not self._running() and (not self._left or self._context.stop_requested):
                break
            self._context.loop.turn(_LOOK_EVERY_S)
            self._look()
            self._show()
        self._end(self._outcome())

    # Its tasks.

    def _directory_of(self, index: int) -> str:
        return os.path.join(os.path.dirname(self._directory), task_id(self.status.id, index))

    def _take_over(self) -> None:
        """Find the tasks that an earlier conductor has begun."""
        known = _taken(OutputReader(os.path.join(self._directory, OUTPUT)))
        for index in self._wanted.indices:
            directory = self._directory_of(index)
            if not os.path.isdir(directory):
                continue
            task = _Task(index, directory, self._context, known.get(index, ([], 0)))
            if task.was_cut_off:
                trees.remove(directory)
            else:
                self._tasks[index] = task
        self._left = [index for index in self._left if index not in self._tasks]

    def _running(self) -> List[_Task]:
        return [task for task in self._tasks.values() if not task.is_over]

    def _look(self) -> None:
        """Look at the tasks from time to time: most updates come over their runners' sockets."""
        if time.monotonic() > self._look_at:
            for task in self._running():
                task.look()
            self._look_at = time.monotonic() + _LOOK_EVERY_S

    def _begin_next(self) -> None:
        """Begin tasks until one has to wait, for its slots or for those of others to end."""
        while self._left and not self._context.stop_requested:
            running = self._running()
            if len(running) >= self._at_once or not all(task.is_placed for task in running):
                return
            self._begin_task(self._left.pop())

    def _begin_task(self, index: int) -> None:
        directory = self._directory_of(index)
        try:
            job = self._made(index, directory)
            self._begin(directory, job)
        except FileExistsError:
            pass  # a job has put something there, which is looked at as a task's record and not written to
        except (OSError, RefusedError) as error:
            with suppress(OSError):
                states.write(directory, self._unbegun(index, str(error)))
        task = self._tasks[index] = _Task(index, directory, self._context, ([], 0))
        if task.status is None:  # not even that could be written
            task.status = self._unbegun(index, "its directory can't be written")
        # Whoever takes nodes away looks there for those that a job has.
        with suppress(OSError):
            states.write_file(os.path.join(self._directory, "roster.json"), read_roster().to_json())

    def _unbegun(self, index: int, why: str) -> JobStatus:
        first = JobStatus.first(replace(self._job, id=task_id(self.status.id, index), array=None))
        message = f"the task could not begin: {why}"
        return first._replace(state=JobState.FAILED, message=message, exit_code=_FAILED, ended_at=time.time())

    def _made(self, index: int, directory: str) -> JobRecord:
        """Make a task's directory, with its own copy of the code. Raises OSError, RefusedError."""
        os.makedirs(directory)
        for name in os.listdir(self._directory):
            if name.endswith((".py", ".pyz")) or name in (STDIN, KEPT_THERE):
                os.link(os.path.join(self._directory, name), os.path.join(directory, name), follow_symlinks=False)
        sources = [os.path.join(self._directory, name) for name in (WORK, LIBRARY)]
        there = [path for path in sources if os.path.lexists(path)]
        # Otherwise it would write on while the next conductor removes what this one has begun.
        end_with_this = partial(prctl, PR_SET_PDEATHSIG, signal.SIGKILL)
        argv = ("cp", "-a", "--reflink=auto", "--", *there, directory)
        copied = subprocess.run(argv, capture_output=True, check=False, preexec_fn=end_with_this)
        if copied.returncode:
            raise OSError(copied.stderr.decode(errors="replace").strip().rpartition("\n")[2])
        job = checkpoints.claim(directory, self._job_of(index), [])
        states.write_file(os.path.join(directory, RECORD), json.dumps(job.to_record()))
        states.keep_room(directory)
        return job

    def _job_of(self, index: int) -> JobRecord:
        job, indices = self._job, self._wanted.indices
        own = {"JOB": job.id, "INDEX": index, "COUNT": len(indices), "MIN": indices[0], "MAX": indices[-1]}
        env = {**job.env, **{f"PHALANX_ARRAY_{name}": str(value) for name, value in own.items()}}
        return replace(
            job,
            id=task_id(job.id, index),
            array=None,
            after=(),
            after_any=(),
            resume=None,
            name=f"{job.name}.{index}" if job.name else None,
            env=env,
            checkpoint=f"{job.checkpoint.rstrip('/')}/{index}" if job.checkpoint else None,
            wait=True,
            wait_limit_s=job.wait_limit_s if job.wait else _NO_LIMIT_S,
        )

    def _pass_on_stops(self) -> None:
        """Stop the tasks that run, once for each request."""
        for task in self._running() if self._context.stop_requested else ():
            task.stop(self._context.stops)

    # Its state.

    def _counts(self) -> Dict[str, int]:
        found = Counter(task.state.value for task in self._tasks.values())
        found[JobState.PENDING.value] += len(self._left)
        return {state.value: found[state.value] for state in JobState if found[state.value]}

    def _show(self) -> None:
        """Let followers see what has changed; the record is written less often, since each time is a sync."""
        self._context.publish()
        known = [task.status for task in self._tasks.values() if task.status]
        changes = {"tasks": self._counts(), "processes": sum(status.processes for status in known)}
        if self.status._replace(**changes) != self.status and time.monotonic() > self._write_at:
            self._write(**changes)
            self._write_at = time.monotonic() + _WRITE_EVERY_S

    def _outcome(self) -> Dict[str, Any]:
        """Return how the array ended: as its first task that did not succeed, by its number."""
        bad = [task for _, task in sorted(self._tasks.items()) if task.state is not JobState.SUCCEEDED]
        if self._context.stop_requested:
            unbegun = f"; {len(self._left)} of {len(self._wanted.indices)} tasks had not begun" if self._left else ""
            return {"state": JobState.STOPPED, "message": f"stopped on request{unbegun}"}
        if not bad:
            return {"state": JobState.SUCCEEDED, "exit_code": 0}
        named = ", ".join(f"{task.index} ({task.state.value})" for task in bad[:_MOST_NAMED])
        more = f" and {len(bad) - _MOST_NAMED} more" if len(bad) > _MOST_NAMED else ""
        first = bad[0].status
        message = f"{len(bad)} of {len(self._wanted.indices)} tasks did not succeed: {named}{more}"
        why = f"; {bad[0].index}: {first.message[:_LONGEST]}" if first and first.message else ""
        code = first.process_exit_code if first else _FAILED
        tail = tuple(line[:_LONGEST] for line in first.tail[:_LONGEST]) if first else ()
        return {"state": JobState.FAILED, "message": message + why, "exit_code": code, "tail": tail}

    def _verdicts(self) -> Iterator[NodeVerdict]:
        """Yield one verdict for each node: those of all tasks, and what is left there after the last one.

        A task asks only the nodes on which it was started, and its processes may have logged in to any other.
        """
        found: Dict[str, List[NodeVerdict]] = {}
        of_tasks = [verdict for task in self._tasks.values() if task.status for verdict in task.status.nodes]
        for verdict in (*of_tasks, *(verify(self._directory, of_tasks=True) if of_tasks else ())):
            found.setdefault(verdict.node, []).append(verdict)
        for node, verdicts in islice(found.items(), _LONGEST):
            worst = min(verdicts, key=lambda one: (one.clean, not one.message))
            yield NodeVerdict(
                node[:_LONGEST], worst.clean, sum(one.killed for one in verdicts), worst.message[:_LONGEST]
            )

    def _end(self, outcome: Dict[str, Any]) -> None:
        damage = next((task.damage for task in self._tasks.values() if task.damage), "")
        if problem := self._context.output.error or damage:
            outcome["message"] = f"{outcome.get('message', '')} ({problem})".strip()
        self._show()
        known = [task.status for task in self._tasks.values() if task.status]
        over = {"message": "", **outcome, "tasks": self._counts(), "nodes": tuple(self._verdicts())}
        over.update(processes=sum(status.processes for status in known), ended_at=time.time())
        self._context.socket.tell_end(self.status._replace(**over))
        self._write(**over)
        self._context.socket.close()
        self._context.output.sync()

    def _write(self, **changes: Any) -> None:
        self.status = self.status._replace(**changes)
        self._context.keep(self.status)


class _Task:
    """A task that has begun: its newest status, and its output as part of the array's.

    `known` are the numbers that its processes have in the array's output, and how much of its own index is there.
    """

    def __init__(self, index: int, directory: str, context: RunContext, known: Tuple[List[int], int]) -> None:
        self.index = index
        self.status: Optional[JobStatus] = None  # None: unknown yet
        self.damage = ""  # why its output is no longer taken
        self._directory, self._context = directory, context
        self._numbers, position = known
        self._reader = OutputReader(os.path.join(directory, OUTPUT), position)
        self._updates: Optional[socket.socket] = None
        self._stoppers: List[socket.socket] = []
        self._orphans = Orphans()
        self.is_over = False
        self.look()

    @property
    def id(self) -> str:
        return states.job_id_of(self._directory)

    @property
    def state(self) -> JobState:
        return self.status.state if self.status else JobState.PENDING

    @property
    def was_cut_off(self) -> bool:
        """Whether its directory was made, and its conductor ended before its runner began."""
        return self.is_over and not os.path.lexists(os.path.join(self._directory, states.FILE))

    @property
    def is_placed(self) -> bool:
        """Whether it has its slots, so that another task may look for its own."""
        return bool(self.status and self.status.ranks and not self.status.waits)

    def stop(self, times: int) -> None:
        """Ask its runner to stop it, unless it was asked so often; one that takes it over is asked, too."""
        runner = connect_follower(self.id, STOP_WISH) if len(self._stoppers) < times else None
        if runner:
            self._stoppers.append(runner)

    def look(self) -> None:
        """Read its record, and the output so far."""
        if self.is_over:
            return
        if self._updates is None:
            self._updates = connect_follower(self.id)
            if self._updates:
                self._context.loop.watch(self._updates.fileno(), lambda _: self._hear())
        self._read()
        is_final = self.status is not None and self.status.state.final
        self._merge(to_end=is_final)
        if is_final:
            self._close()
            self.is_over = True

    def _hear(self) -> None:
        update = b""
        with suppress(OSError):
            update = self._updates.recv(4096) if self._updates else b""
        if not update:
            self._close()
        self.look()

    def _close(self) -> None:
        connections = [*self._stoppers, *([self._updates] if self._updates else [])]
        self._updates, self._stoppers = None, []
        for connection in connections:
            self._context.loop.forget(connection.fileno())
            connection.close()

    def _read(self) -> None:
        try:
            self.status = states.read(self._directory)
        except (FileNotFoundError, NotADirectoryError, Invalid) as error:
            # Its runner writes a valid one at its end.
            if self._updates is None:
                invalid = error if isinstance(error, Invalid) else Invalid("it is gone")
                self.status = states.damaged(self._directory, invalid)
        except OSError:  # the shared directory does not answer
            return
        if self._updates is None and self.status and is_orphan(self.status):
            # It is restarted if it may be, or found lost; this takes seconds.
            self._orphans.settle(self._directory, self.status.runner)

    def _merge(self, to_end: bool) -> None:
        """Add the new records of its output to the array's."""
        while not self.damage:
            taken = 0
            try:
                for _, record in islice(self._reader.records(), _RECORDS_AT_ONCE):
                    self._repeat(record)
                    taken += 1
            except (Invalid, OSError) as error:
                self.damage = f"damaged output of task {self.index}: {error}"
                return
            if taken < _RECORDS_AT_ONCE or not to_end:
                return
            self._context.publish()

    def _repeat(self, record: Any) -> None:
        time_ns, offset, length, number, stream = record
        if number >= len(self._reader.processes):
            self._reader.refresh()
            self._reader.process(number)
        for process in self._reader.processes[len(self._numbers) :]:
            source, label = os.path.join(self._directory, OUTPUT, process["file"]), f"{self.index}.{process['label']}"
            output = self._context.output
            self._numbers.append(output.adopt(label, process["node"], source, f"{self.index}.{process['file']}"))
        self._context.output.repeat((time_ns, offset, length, self._numbers[number], stream))


def _taken(output: OutputReader) -> Dict[int, Tuple[List[int], int]]:
    """Return what an array's output has of each task: the numbers of its processes, and how many of its records."""
    numbers: Dict[int, List[int]] = {}
    counts: Counter[int] = Counter()
    with suppress(Invalid, ValueError):  # a job can write anything there
        owners = [int(process["label"].partition(".")[0]) for process in output.refresh()]
        for number, index in enumerate(owners):
            numbers.setdefault(index, []).append(number)
        counts.update(owners[record[3]] for _, record in output.records() if record[3] < len(owners))
    return {index: (own, counts[index]) for index, own in numbers.items()}
