"""Runs as a job: copies a finished job's directory for each way to damage a record, and damages the copy.

python3 damage.py JOBS SOURCE [WAY…]     these ways, or all; prints {"way": "job id"}
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import sys
from pathlib import Path

RECORD = struct.Struct("<QQIHBx")


def text(content: str):
    return lambda job: (job / "state.json").write_text(content)


def changed(**fields):
    def damage(job: Path) -> None:
        state = json.loads((job / "state.json").read_text())
        (job / "state.json").write_text(json.dumps({**state, **fields}))

    return damage


def replaced(name: str, make):
    def damage(job: Path) -> None:
        (job / name).unlink(missing_ok=True)
        make(job / name)

    return damage


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


def orphan(name: str, make):
    """A job whose runner is gone, with an obstacle for whatever settles it."""

    def damage(job: Path) -> None:
        changed(state="running", ended_at=None)(job)
        replaced(name, make)(job)

    return damage


def fifo(path: Path) -> None:
    os.mkfifo(path)


STATES = {
    "empty": text(""),
    "binary": lambda job: (job / "state.json").write_bytes(os.urandom(4096)),
    "half of it": lambda job: os.truncate(job / "state.json", 100),
    "no format": changed(format=None),
    "a few fields": text('{"id": "x"}'),
    "another job's": changed(id="260101-000000-000000"),
    "no object": text('["state"]'),
    "wrong types": changed(tail=5, nodes="none", command={}),
    "a verdict without a node": changed(nodes=[{}]),
    "a state that is none": changed(state="\u001b[2Jdone"),
    "tasks in a state that is none": changed(tasks={"\u001b[2J": 1}),
    "a time that is none": text('{"submitted_at": NaN}'),
    "a number without end": lambda job: (job / "state.json").write_text("1" * 1_000_000),
    "nested": lambda job: (job / "state.json").write_text("[" * 500_000),
    "nested in an object": lambda job: (job / "state.json").write_text('{"a":' * 200_000),
    "huge": replaced("state.json", huge),
    "fifo": replaced("state.json", fifo),
    "directory": replaced("state.json", Path.mkdir),
    "link to a device": replaced("state.json", lambda path: path.symlink_to("/dev/zero")),
    "link to itself": replaced("state.json", lambda path: path.symlink_to(path)),
    "unreadable": lambda job: (job / "state.json").chmod(0),
    "gone": lambda job: (job / "state.json").unlink(),
}
# A job that claims that a newer phalanx has started it.
NEWER = "of a newer phalanx"
OUTPUTS = {
    "output: index is a fifo": replaced("output/index", fifo),
    "output: processes is a fifo": replaced("output/processes", fifo),
    "output: processes is no list": replaced("output/processes", lambda path: path.write_text("5\n[]\n{}\n")),
    "output: processes is nested": replaced("output/processes", lambda path: path.write_text("[" * 500_000 + "\n")),
    "output: of a process that is none": replaced(
        "output/index", lambda path: path.write_bytes(RECORD.pack(1, 0, 1, 9, 1))
    ),
    "output: more than there is": replaced(
        "output/index", lambda path: path.write_bytes(RECORD.pack(1, 0, 0xFFFFFFFF, 0, 1))
    ),
}
ORPHANS = {
    "orphan: its log is a fifo": orphan("runner.log", fifo),
    "orphan: its lock is a fifo": orphan("settle.lock", fifo),
    "orphan: its roster is a fifo": orphan("roster.json", fifo),
    "orphan: its roster is nested": orphan("roster.json", lambda path: path.write_text("[" * 300_000)),
    "orphan: its description is a fifo": orphan("job.json", fifo),
    "orphan: its runner is a fifo": orphan("runner.pyz", fifo),
}


def main() -> None:
    jobs, source, *ways = Path(sys.argv[1]), *sys.argv[2:]
    known = {**STATES, **OUTPUTS, **ORPHANS, NEWER: changed(state="running", ended_at=None, format=2)}
    made = {}
    for way in ways or known:
        job_id = f"{source[:-6]}{os.urandom(3).hex()}"
        job = jobs / job_id
        shutil.copytree(jobs / source, job)
        if (job / "state.json").exists():
            changed(id=job_id)(job)
        known[way](job)
        made[way] = job_id
    print(json.dumps(made))


if __name__ == "__main__":
    main()
