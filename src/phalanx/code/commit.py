"""Which commit the code of a job is, as git says, and whether it has changes.

The repository may be a stranger's, so git runs without its hooks, monitors and transports, and not at all if the
repository's own settings name a program that git would start to compare files, or git does not list them (before 2.26).
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

_WITHIN_S = 3.0
_ENDS_WITHIN_S = 1.0
_left_behind: list[subprocess.Popen[bytes]] = []
# Programs that `git status` starts for a file with such an attribute.
_STARTS = re.compile(r"(?is)filter\..*\.(clean|process)$|core\.fsmonitor$|include(if\..*)?\.path$")
_STATUS = (
    *("--no-pager", "--no-optional-locks", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null"),
    *("status", "--porcelain=v2", "--branch", "--no-renames", "--ignore-submodules=dirty", "--", "."),
)
_OID = re.compile(r"# branch\.oid ([0-9a-f]{40,64})")


class Commit:
    """git's answer about a directory, for which nobody waits before it is needed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process = None
        if _is_in_repository(directory) and not _starts_programs(directory):
            self._process = _git(directory, *_STATUS)

    def text(self) -> str:
        """Return the commit's id, with "-dirty" if a file below the directory is not as in it; "" if git can't tell."""
        if self._process is None:
            return ""
        out = _answer(self._process) or ""
        found = _OID.match(out)
        changed = [line for line in out.splitlines() if not line.startswith("#")]
        return found[1] + "-dirty" * bool(changed) if found else ""


def _is_in_repository(directory: Path) -> bool:
    here = directory.resolve()
    return any(os.path.lexists(place / ".git") for place in (here, *here.parents))


def _starts_programs(directory: Path) -> bool:
    """Whether git would start a program that the repository's own settings name; True if git does not tell."""
    process = _git(directory, "config", "--list", "--show-scope", "--name-only", "-z")
    answer = _answer(process) if process else None
    if answer is None:
        return True
    # Only NUL is in no name: a repository may name a filter with any other character.
    words = answer.split("\0")
    own = (name for scope, name in zip(words[::2], words[1::2], strict=False) if scope not in ("system", "global"))
    return any(map(_STARTS.match, own))


def _git(directory: Path, *words: str) -> subprocess.Popen[bytes] | None:
    # No object is fetched for an answer, whatever the repository's settings say of its origin.
    own = {"GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "none", "LC_ALL": "C"}
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | own
    try:
        return subprocess.Popen(
            ["git", "-C", str(directory), *words],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except OSError:  # git is not installed
        return None


def _answer(process: subprocess.Popen[bytes]) -> str | None:
    """Return what git wrote; None if it failed, or took too long. One that hangs in the kernel is left behind."""
    try:
        out, _ = process.communicate(timeout=_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        try:
            process.communicate(timeout=_ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            _left_behind.append(process)
        return None
    return out.decode(errors="replace") if process.returncode == 0 else None
