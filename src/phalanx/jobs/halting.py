"""Stop a job while the shared directory does not answer: through its runner's socket on the head."""

from __future__ import annotations

from phalanx.errors import SharedSilent
from phalanx.jobs import toolbox
from phalanx.jobs.job_model import status_in
from phalanx.runner.files.job_status import JobStatus
from phalanx.runner.names import RUNNER_GONE, STILL_RUNS
from phalanx.ssh.remote import Remote

# By default a job has 5 s after SIGTERM, and then the nodes are asked over new connections: 17 s in all on a quiet
# machine.
_WITHIN_S = 120.0
_BY_ID = "Without it, only the ids of running jobs are known: give one, or the beginning or end of one."
_GOES_ON = "Its runner is still stopping it: run `phalanx stop` again to wait for that."
_GONE = "Its record is on the directory: `phalanx stop` settles the job when it answers."
_NOT_ASKED = "Run `phalanx stop` again."


def halt(remote: Remote, shared: str, reference: str, silence: SharedSilent) -> JobStatus:
    """End a running job on all nodes, and return its final status, which is not on the shared directory yet.

    `reference` is its id, the beginning or end of it, or "" for the newest that runs. Raises SharedSilent for none, and
    for one that does not end in time, as when its runner waits for the directory itself.
    """
    done = toolbox.run_sent(remote, "halt", reference, f"{_WITHIN_S:g}", timeout_s=_WITHIN_S + 20)
    records = [line for line in done.stdout.splitlines() if line.startswith(b"{")]
    if records:
        status = status_in(records[-1])
        later = f"its record follows when {shared} answers"
        return status._replace(message="; ".join(filter(None, (status.message, later))))
    said = (done.stderr.decode(errors="replace").strip().splitlines() or [""])[-1]
    if done.status == STILL_RUNS:
        raise SharedSilent(f"{silence.message}, and job {said} has not ended after {_WITHIN_S:g} s", _GOES_ON)
    if done.status == RUNNER_GONE:
        ended = f"and the runner of job {said} has ended without a final state"
        raise SharedSilent(f"{silence.message}, {ended}", _GONE)
    if done.status == 1 and said:
        raise SharedSilent(f"{silence.message}; {said}", _BY_ID)
    failed = f"and the head could not be asked (status {done.status})"
    raise SharedSilent(f"{silence.message}, {failed}{f': {said}' if said else ''}", _NOT_ASKED)
