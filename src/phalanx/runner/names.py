"""Names on which a job's runner and its clients agree. This module imports nothing that takes time."""

from __future__ import annotations

import signal

RUNNER = "runner.pyz"
WORK = "work"
# The job's description, as JSON.
RECORD = "job.json"
OUTPUT = "output"
# What rank 0 reads as its standard input, if the job has any; keeper.py has the name, too.
STDIN = "stdin"
# Where a process of the job finds, in one word, why it was sent a signal; the words.
REASON = "PHALANX_REASON"
REASON_FILE = "phalanx-reason"
TIME, STOP_REQUEST, SPOT, STALL, FAILURE, LOST = "time", "stop", "spot", "stall", "failure", "lost"
# Of Python modules that a job's programs may import, without an installed phalanx.
LIBRARY = "library"
# Which process receives the submission, as JSON: before the first state, it shows whether more may come.
SUBMITTER = "submitter.json"
# The list of what work/ is made from, where the code is not sent whole.
MANIFEST = "code.json"
# What the command names or imports and an ignore file keeps on the user's machine: name → a sentence, as JSON.
KEPT_THERE = "kept.json"
# In the job's directory, from the process that keeps its checkpoints in S3: `ready` once they are here, `over` and
# `problem` at its end.
COPIER_STATUS = "copier.json"
# The last member of a submission's archive.
LAST_SENT = "imports.py"

# Asks the runner to stop the job. It is not a signal of a machine that shuts down: that makes the job lost.
STOP = int(signal.SIGUSR1)

# Exit statuses of `halt` for a job that has not ended in time, and for one whose runner ended without a final state.
STILL_RUNS, RUNNER_GONE = 2, 3

# Begins the message of a job that stands still.
STALLED = "stalled: "

# Exit status of `stacks` where no runner of such a job is on the head.
NO_RUNNER = 4

# How the head refuses a submission: its exit status, and its message.
REFUSED_STATUS = 65
REFUSED_PREFIX = "phalanx refuses ("

# What a process does, by Linux's letters (proc_pid_stat(5)).
STATES = {
    "R": "runs",
    "S": "waits",
    "I": "waits",
    "D": "hangs in the kernel",
    "T": "is stopped by a signal",
    "t": "is stopped by a debugger",
    "Z": "has ended",
    "X": "has ended",
}


def refusal(code: str, reason: object) -> str:
    """Return the message: the error's code, and the reason."""
    return f"{REFUSED_PREFIX}{code}): {reason}"
