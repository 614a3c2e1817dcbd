"""Names on which a job's runner and whoever asks for the job agree. They need no import that costs."""

from __future__ import annotations

RUNNER = "runner.pyz"
WORK = "work"
# What the job is, as JSON.
RECORD = "job.json"
# What work/ is to be made of, where it does not come whole.
MANIFEST = "code.json"
# What comes last of a submission's archive.
LAST_SENT = "imports.py"

# How the head's end of a submission says that it took nothing: its exit status, and what its words begin with.
REFUSED_STATUS = 65
REFUSED_WORDS = "phalanx refuses: "
