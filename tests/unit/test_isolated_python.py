"""Every Python that phalanx or the local cloud starts is isolated (-I): it imports nothing of the user's directory."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import source_trees
from source_trees import LOCAL_CLOUD, PHALANX

PYTHON = re.compile(r"(/usr/bin/)?python3?")
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
    for path, nodes in source_trees.nodes().items():
        top = LOCAL_CLOUD if path.is_relative_to(LOCAL_CLOUD) else PHALANX
        for node in nodes:
            if isinstance(node, (ast.List, ast.Tuple)) and is_start(node.elts):
                yield path.relative_to(top.parent).as_posix(), node


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
