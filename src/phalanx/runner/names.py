"""Names on which a job's runner and whoever asks for the job agree. They need no import that costs."""

from __future__ import annotations

# The C half, which is there already.
import _signal  # pyright: ignore[reportMissingImports]

RUNNER = "runner.pyz"
WORK = "work"
# What the job is, as JSON.
RECORD = "job.json"
OUTPUT = "output"
# Which process takes the submission, as JSON: until there is a state, that says whether more of it may come.
SUBMITTER = "submitter.json"
# What work/ is to be made of, where it does not come whole.
MANIFEST = "code.json"
# What comes last of a submission's archive.
LAST_SENT = "imports.py"

# The user's wish to stop, to the runner. No signal that a machine that shuts down sends to all: then the job is lost.
STOP = _signal.SIGUSR1

# How the head's end of a submission says that it took nothing: its exit status, and what its words begin with.
REFUSED_STATUS = 65
REFUSED_PREFIX = "phalanx refuses: "
