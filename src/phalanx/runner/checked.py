"""How the runner's zipapp is started: from the shared directory, where jobs may write, and only if it has its SHA-256.

It is read once, hashed, and run from that memory: what is run is what was checked, whatever becomes of the file.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Tuple

# The image's, by its path, as the agent has it: what PATH finds first may be a job's.
PYTHON = "/usr/bin/python3"
# Exit status when the file is missing or another one (sysexits' EX_UNAVAILABLE).
UNAVAILABLE = 69
# Where it is in a command line that `argv` made: PYTHON -IS -c _PROGRAM DIGEST RUNNER VERB …
VERB_AT = 6

# Simple statements without `"`, `$`, "`" and `\`, for they stand on one line that batch systems hand from shell to
# shell. hashlib takes 10 ms to import, the C halves nothing; not every distribution builds them in. Python's own way
# to run a zipapp costs 15 ms (`runpy`). A seal keeps other processes of this user from writing into the memory.
_PROGRAM = "; ".join(
    (
        "import fcntl, os, sys, zipimport",
        "digest, runner = sys.argv[1:3]",
        "there = os.path.isfile(runner) and os.access(runner, os.R_OK)",
        "content = open(runner, 'rb').read(1 << 24) if there else b''",
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


def first_argv(digest: str, runner: str, *words: str) -> Tuple[str, ...]:
    """The command line that runs a verb of the zipapp at this path if that has this SHA-256; without a verb, looks."""
    return (PYTHON, "-IS", "-c", _PROGRAM, digest, runner, *words)


def argv(runner: str, *words: str) -> Tuple[str, ...]:
    """The command line that runs a verb of the zipapp at this path if it is the one that runs here."""
    return first_argv(_own_digest(), runner, *words)


def keep(place: str) -> None:
    """Make the file at this place the zipapp that runs here. Raises OSError."""
    if os.path.exists(place) and os.path.samefile(place, sys.argv[0]):
        return
    beside = f"{place}.{os.getpid()}"
    try:
        os.link(sys.argv[0], beside)
    except OSError:  # a file system has but so many names for a file, or one name
        with open(sys.argv[0], "rb") as source, open(beside, "wb") as copy:
            copy.write(source.read())
    os.replace(beside, place)


def _own_digest() -> str:
    """As _PROGRAM found it; where somebody started the zipapp by its name alone, that of what lies there now."""
    found = vars(sys.modules["__main__"]).get("digest")
    if found:
        return found
    from hashlib import sha256

    with open(sys.argv[0], "rb") as file:
        return sha256(file.read()).hexdigest()
