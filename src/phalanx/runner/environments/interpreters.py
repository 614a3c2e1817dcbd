"""Finds the Python for an environment: the first on PATH that a specifier such as ">=3.10,<3.13" allows."""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import dataclass
from typing import Dict, Iterator, List, Tuple

_ANSWER_WITHIN_S = 60.0
_NEWEST_MINOR = 20
_CLAUSE = re.compile(r"(>=|<=|==|!=|>|<)\s*(\d+(?:\.\d+)*)(\.\*)?")
# Only -I: with -S, a virtual environment would not be recognised as one before Python 3.11, where site.py does that.
_QUESTION = """
import json, os, sys, sysconfig
try:
    from pip import __version__ as pip
except ImportError:
    pip = ""
sites = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
print(json.dumps({"version": list(sys.version_info[:3]), "base": os.path.realpath(sys.executable), "sites": sites,
                  "is_venv": sys.prefix != sys.base_prefix, "platform": sysconfig.get_platform(), "pip": pip}))
"""


@dataclass(frozen=True)
class Interpreter:
    """A Python of this machine.

    `base`: the program behind a virtual environment; `sites`: its package directories; `pip`: its version, "" for none.
    """

    path: str
    version: Tuple[int, ...]
    base: str
    sites: Tuple[str, ...]
    is_venv: bool
    platform: str
    pip: str

    @property
    def pip_serves_others(self) -> bool:
        """Whether its pip can install into another environment (`--python`, since pip 22.3)."""
        return tuple(map(int, re.findall(r"\d+", self.pip)[:2])) >= (22, 3)

    @property
    def version_text(self) -> str:
        return ".".join(map(str, self.version))


def find(specifier: str, path: str) -> Tuple[Interpreter | None, List[str]]:
    """Return the interpreter to use (None: none fits), and those that were found, as texts for a message.

    python3 comes first, because it is the image's choice; then the newest.
    """
    seen: Dict[str, str] = {}
    for place in _candidates(path):
        if os.path.realpath(place) in seen:
            continue
        interpreter = ask(place)
        if interpreter is None:
            continue
        if allows(specifier, interpreter.version):
            return interpreter, []
        seen[os.path.realpath(place)] = f"{place} ({interpreter.version_text})"
    return None, list(seen.values())


def allows(specifier: str, version: Tuple[int, ...]) -> bool:
    """Return whether a specifier (PEP 440's comparisons of plain versions; "" for any) allows this version."""
    return all(_holds(clause.strip(), version) for clause in specifier.split(",") if clause.strip())


def _holds(clause: str, version: Tuple[int, ...]) -> bool:
    match = _CLAUSE.fullmatch(clause)
    if match is None:
        raise ValueError(f"'{clause}' compares no version of Python")
    operator, wanted = match[1], tuple(map(int, match[2].split(".")))
    if operator in ("==", "!="):
        return (version[: len(wanted)] == wanted) == (operator == "==")
    return {">=": version >= wanted, "<=": version <= wanted, ">": version > wanted, "<": version < wanted}[operator]


def _candidates(path: str) -> Iterator[str]:
    places = [place for place in path.split(os.pathsep) if place]
    for name in ("python3", *(f"python3.{minor}" for minor in range(_NEWEST_MINOR, 7, -1))):
        for place in places:
            program = os.path.join(place, name)
            if os.path.isfile(program) and os.access(program, os.X_OK):
                yield program


def ask(program: str) -> Interpreter | None:
    """Return what this program says about itself; None when it is no working Python (a version manager's shim)."""
    try:
        done = subprocess.run(
            [program, "-I", "-c", _QUESTION], capture_output=True, timeout=_ANSWER_WITHIN_S, check=True
        )
        said = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    said.update(version=tuple(said["version"]), sites=tuple(said["sites"]))
    return Interpreter(path=program, **said)
