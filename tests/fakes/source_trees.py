"""The syntax trees of the sources, for all unit tests that read them: parsing them takes a second."""

from __future__ import annotations

import ast
import functools
import gc
from pathlib import Path

ROOT = Path(__file__).parents[2]
PHALANX = ROOT / "src" / "phalanx"
LOCAL_CLOUD = ROOT / "localcloud" / "src" / "localcloud"
# Most nodes are of these types, and no test asks for them.
_LEAVES = (ast.Name, ast.expr_context, ast.operator, ast.cmpop)


@functools.cache
def nodes() -> dict[Path, list[ast.AST]]:
    """Return the nodes of each module of phalanx and of the local cloud, without leaves."""
    paths = [*sorted(PHALANX.rglob("*.py")), *sorted(LOCAL_CLOUD.rglob("*.py"))]
    # Garbage collection would go through a million nodes again and again.
    gc.disable()
    found = {path: below(ast.parse(path.read_bytes())) for path in paths}
    gc.freeze()
    gc.enable()
    return found


def below(tree: ast.AST) -> list[ast.AST]:
    """List `tree` and the nodes below it, like ast.walk but faster and without leaves."""
    found = [tree]
    for node in found:
        for value in node.__dict__.values():
            if isinstance(value, list):
                found += [item for item in value if isinstance(item, ast.AST) and not isinstance(item, _LEAVES)]
            elif isinstance(value, ast.AST) and not isinstance(value, _LEAVES):
                found.append(value)
    return found
