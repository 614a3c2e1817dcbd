"""Stop a job while the shared directory does not answer: through its runner's socket on the head."""

from __future__ import annotations

from dataclasses import replace

from phalanx.errors import SharedSilent
from phalanx.jobs import toolbox
from phalanx.jobs.job_model import JobStatus
from phalanx.runner.names import STILL_RUNS
from phalanx.ssh.remote import Remote

# A job has 5 s after SIGTERM, and then the nodes are asked over new connections: 17 s in all on a quiet machine.
_WITHIN_S = 120.0
_BY_ID = "Without it, only the ids of running jobs are known: give one, or the beginning or end of one."
_LATER = "It was asked to stop the job, and does so when the directory answers."


def halt(remote: Remote, shared: str, reference: str, silence: SharedSilent) -> JobStatus:
    """End a running job on all nodes, and return its final status, which is not on the shared directory yet.

    `reference` is its id, the beginning or end of it, or "" for the newest that runs. Raises SharedSilent for none, and
    for one whose runner waits for the directory itself.
    """
    done = toolbox.run_sent(remote, "halt", reference, f"{_WITHIN_S:g}", timeout_s=_WITHIN_S + 20)
    records = [line for line in done.stdout.splitlines() if line.startswith(b"{")]
    if records:
        status = JobStatus.from_line(records[-1])
        later = f"its record follows when {shared} answers"
        return replace(status, message="; ".join(filter(None, (status.message, later))))
    reason = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no answer"]
    if done.status == STILL_RUNS:
        raise SharedSilent(f"{silence.message}, and the runner of job {reason[0]} waits for it", _LATER)
    raise SharedSilent(f"{silence.message}; {reason[0]}", _BY_ID)
