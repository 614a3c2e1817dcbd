"""Every Python that phalanx or the local cloud starts is isolated (-I): it imports nothing of the user's directory."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import localcloud
import phalanx

PYTHON = re.compile(r"(/usr/bin/)?python3?")
MAY_START = re.compile(r"sys\.executable|python3\"|PYTHON|\"-m\"|imports\.py")
PLACES = ("sys.executable", "self.python.path", "self.python.base", "python", "checked.PYTHON", "PYTHON")
# These start in another way, each for its reason.
OTHERS = {
    "phalanx/jobs/check_net.py": "a job",
    "phalanx/jobs/fetch_data.py": "a job",
    "phalanx/cluster/stage_data.py": "a job",
    "phalanx/launchers/torchrun.py": "the job's own command",
    "phalanx/datasets/sources.py": "a job",
    "phalanx/runner/starter/starter.py": "the job's own Python, which says what the job could not import",
    "localcloud/nodes/bootstrap/build.py": "on a node, as its root",
}


def starts() -> Iterator[tuple[str, ast.List | ast.Tuple]]:
    for package in (phalanx, localcloud):
        top = Path(package.__file__).parents[1]
        for path in Path(package.__file__).parent.rglob("*.py"):
            name = path.relative_to(top).as_posix()
            text = path.read_text()
            for node in ast.walk(ast.parse(text)) if MAY_START.search(text) else ():
                if isinstance(node, (ast.List, ast.Tuple)) and is_start(node.elts):
                    yield name, node


def is_start(words: list[ast.expr]) -> bool:
    """Whether these are the words of a command, rather than a pair of values."""
    return len(words) > 1 and is_python(words[0]) and not isinstance(words[1], (ast.Starred, ast.Name))


def is_python(word: ast.expr) -> bool:
    if isinstance(word, ast.Constant):
        return isinstance(word.value, str) and PYTHON.fullmatch(word.value) is not None
    return ast.unparse(word) in PLACES


def test_every_python_is_isolated():
    found = list(starts())
    plain = {name for name, argv in found if not ast.unparse(argv.elts[1]).startswith("'-I")}
    assert plain - set(OTHERS) == set()
    assert set(OTHERS) - {name for name, _ in found} == set(), "needless exceptions"
