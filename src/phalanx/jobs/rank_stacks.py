"""What each rank of a job does: taken through the job's runner, or saved before its end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from phalanx.errors import JobError, SharedSilent
from phalanx.jobs import toolbox
from phalanx.jobs.head_command import error_tail
from phalanx.jobs.job import ClusterAccess, open_job
from phalanx.node.validate import Invalid
from phalanx.runner.names import NO_RUNNER
from phalanx.runner.stack_report import Frame, JobStacks, RankStack, Thread, by_number, named, report, summary
from phalanx.ssh import head_answers
from phalanx.waits import waiting

__all__ = ["Frame", "JobStacks", "RankStack", "Thread", "by_number", "named", "summary", "take"]

# More than a starter takes; nodes that answer later are named.
_ANSWER_WITHIN_S = 12.0
# The head may fetch py-spy in between, by two programs.
_TIMEOUT_S = 2 * _ANSWER_WITHIN_S + 200.0


def take(cluster: ClusterAccess, reference: str | None, rank: str | None = None) -> JobStacks:
    """Return what the ranks of a job do now, or only this rank; of a job that has ended, what was saved before.

    Raises JobError, ClusterError.
    """
    tools = f"{cluster.shared}/{toolbox.TOOLS}"
    silence: SharedSilent | None = None
    with waiting("the ranks' stacks"):
        try:
            job_id = open_job(cluster, reference).id
            command = toolbox.command(cluster.shared, "stacks", job_id, tools, f"{_ANSWER_WITHIN_S:g}")
            done = toolbox.run(cluster.remote(), cluster.shared, command, timeout_s=_TIMEOUT_S, check=False)
        except SharedSilent as error:
            silence, job_id = error, reference or ""
            arguments = ("stacks", job_id, tools, f"{_ANSWER_WITHIN_S:g}")
            done = toolbox.run_sent(cluster.remote(), *arguments, timeout_s=_TIMEOUT_S)
    said = error_tail(done.stderr.decode(errors="replace"))
    if done.status == NO_RUNNER:
        why = f"{silence.message}, and {said}" if silence else f"job {job_id} has no running process"
        raise JobError(why, "`phalanx jobs` shows its state." if not silence else silence.hint, code="not-running")
    if done.status != 0:
        raise JobError(f"the head gave no answer: {said or f'exit code {done.status}'}", code="no-answer")
    lines = [line for line in done.stdout.splitlines() if line.startswith(b"{")]
    return _only(_checked(job_id, [head_answers.parsed(line) for line in lines]), rank)


def _checked(job_id: str, answers: list[dict[str, Any]]) -> JobStacks:
    try:
        return report(job_id, answers, _ANSWER_WITHIN_S)
    except Invalid as error:
        raise head_answers.InvalidAnswerError(error) from error


def _only(stacks: JobStacks, rank: str | None) -> JobStacks:
    """Return the stacks of one rank only. Raises JobError if the job has no such rank."""
    if rank is None:
        return stacks
    chosen = tuple(one for one in stacks.ranks if one.rank == rank)
    ended = tuple(name for name in stacks.ended if name == rank)
    if not chosen and not ended and not stacks.silent:
        raise JobError(f"job {stacks.id} has no process '{rank}'", f"It has {named(stacks.ranks)}.", code="no-process")
    return replace(stacks, ranks=chosen, ended=ended, silent={} if chosen or ended else stacks.silent)
