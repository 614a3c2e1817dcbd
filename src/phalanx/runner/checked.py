"""Starts the runner's zipapp from the shared directory, where jobs can write, only if it has the expected SHA-256.

It is read once, hashed, and run from memory: what runs is what was checked, even if the file changes. It can also come
through stdin, for as long as the shared directory does not answer.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Tuple

# The image's Python, by its path, as the agent uses it: the first one on PATH may belong to a job.
PYTHON = "/usr/bin/python3"
# Exit status when the file is missing or has another hash (sysexits' EX_UNAVAILABLE).
UNAVAILABLE = 69
# In place of the zipapp's path: it is read from stdin.
STDIN = "-"
# The verb's index in a command line from `argv`: PYTHON -IS -c _PROGRAM DIGEST RUNNER VERB …
VERB_AT = 6

# Simple statements without `"`, `$`, "`" and `\`, because batch systems pass this line from shell to shell. Importing
# hashlib takes 10 ms, the C halves nothing; not every distribution builds them in. Python's own way to run a zipapp
# costs 15 ms (`runpy`). A seal keeps other processes of this user from writing into the memory.
_PROGRAM = "; ".join(
    (
        "import fcntl, os, sys, zipimport",
        "digest, runner = sys.argv[1:3]",
        f"piped = runner == '{STDIN}'",
        "there = piped or os.path.isfile(runner) and os.access(runner, os.R_OK)",
        "content = open(0 if piped else runner, 'rb').read(1 << 24) if there else b''",
        "named = [name for name in ('_sha2', '_sha256') if name in sys.builtin_module_names] or ['hashlib']",
        "same = __import__(named[0]).sha256(content).hexdigest() == digest",
        f"same or sys.exit(print(runner, 'is not the runner that it was', file=sys.stderr) or {UNAVAILABLE})",
        "sys.argv[:3] = [runner]",
        "len(sys.argv) > 1 or sys.exit()",
        "memory = os.memfd_create('runner', os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)",
        "os.write(memory, content)",
        "fcntl.fcntl(memory, 1033, 15)",
        "sys.path.insert(0, f'/proc/self/fd/{memory}')",
        "exec(zipimport.zipimporter(sys.path[0]).get_code('__main__'))",
    )
)


def first_argv(digest: str, runner: str, *args: str) -> Tuple[str, ...]:
    """Return the command line that runs a verb of this zipapp if it has this SHA-256; without a verb, only checks."""
    return (PYTHON, "-IS", "-c", _PROGRAM, digest, runner, *args)


def argv(runner: str, *args: str) -> Tuple[str, ...]:
    """Return the command line that runs a verb of this zipapp if it is the one that runs here."""
    return first_argv(_own_digest(), runner, *args)


def own_content() -> bytes:
    """Return the zipapp that runs here, from memory."""
    found = vars(sys.modules["__main__"]).get("content")
    if found:
        return found
    with open(sys.argv[0], "rb") as file:
        return file.read()


def keep(place: str) -> None:
    """Copy the zipapp that runs here to this place. Raises OSError."""
    if os.path.exists(place) and os.path.samefile(place, sys.argv[0]):
        return
    beside = f"{place}.{os.getpid()}"
    try:
        os.link(sys.argv[0], beside)
    except OSError:  # a file system limits the number of links
        with open(sys.argv[0], "rb") as source, open(beside, "wb") as copy:
            copy.write(source.read())
    os.replace(beside, place)


def _own_digest() -> str:
    """Return the digest that _PROGRAM checked; if the zipapp was started without it, that of the present file."""
    found = vars(sys.modules["__main__"]).get("digest")
    if found:
        return found
    from hashlib import sha256  # here, because few need its 10 ms

    with open(sys.argv[0], "rb") as file:
        return sha256(file.read()).hexdigest()
