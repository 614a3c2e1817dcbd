"""Finds missing packages that a script is sure to import, with the job's Python, before any rank starts.

`python imports.py SCRIPT` or `python imports.py -m MODULE` runs in the job's directory, as a file of its own beside
runner.pyz, and prints the names as a JSON list. It does not run the job's code. Only imports before the first statement
that calls something count, because a call may install packages, change sys.path, or end the program.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import signal
import sys

_ANSWER_WITHIN_S = 10
_RUNS = (ast.Call, ast.Raise, ast.Await, ast.AugAssign, ast.Delete)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def main() -> None:
    """Print what is missing; print nothing if the script can't be read."""
    signal.alarm(_ANSWER_WITHIN_S)
    is_module = sys.argv[1] == "-m"
    root = os.getcwd() if is_module else os.path.dirname(os.path.realpath(sys.argv[1]))
    sys.path[0] = root
    reader = Reader(root)
    if is_module:
        reader.follow(sys.argv[2])
    else:
        reader.read(sys.argv[1])
    print(json.dumps(reader.missing))


class Reader:
    """Follows imports in order, through the job's own modules; `missing` are names of packages."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._seen: set[str] = set()
        self.missing: list[str] = []

    def read(self, path: str) -> bool:
        """Follow a file's imports; return False at a statement after which nothing is certain."""
        if path in self._seen:
            return True
        self._seen.add(path)
        body = ast.parse(self.content(path), path).body
        return all(self._pass(statement) for statement in body)

    def content(self, path: str) -> bytes:
        """Return a file's content."""
        with open(path, "rb") as file:
            return file.read()

    def is_installed(self, name: str) -> bool:
        """Return whether the job's Python finds a package."""
        return _is_installed(name)

    def follow(self, name: str) -> bool:
        """Follow an import of this (dotted) name."""
        parts = name.split(".")
        place = os.path.join(self._root, parts[0])
        if not os.path.isdir(place) and not os.path.isfile(f"{place}.py"):
            if not (self.is_installed(parts[0]) or parts[0] in self.missing):
                self.missing.append(parts[0])
            return True
        return all(self._enter(os.path.join(self._root, *parts[:depth])) for depth in range(1, len(parts) + 1))

    def _enter(self, place: str) -> bool:
        """Follow a module or package of the job; any other name may be an attribute of its package."""
        if os.path.isdir(place):
            inside = os.path.join(place, "__init__.py")
            return not os.path.isfile(inside) or self.read(inside)
        return not os.path.isfile(f"{place}.py") or self.read(f"{place}.py")

    def _pass(self, statement: ast.stmt) -> bool:
        if isinstance(statement, ast.Import):
            return all(self.follow(alias.name) for alias in statement.names)
        if isinstance(statement, ast.ImportFrom):
            if statement.level or not statement.module:
                return False
            names = [f"{statement.module}.{alias.name}" for alias in statement.names]
            return self.follow(statement.module) and all(self.follow(name) for name in names)
        return _is_quiet(statement)


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return True  # a module without a spec


def _is_quiet(node: ast.AST) -> bool:
    """Return whether a statement can't affect imports. The bodies of functions run later."""
    if isinstance(node, _FUNCTIONS):
        parts = [*getattr(node, "decorator_list", ()), *node.args.defaults, *filter(None, node.args.kw_defaults)]
        return all(map(_is_quiet, parts))
    if isinstance(node, _RUNS) or (isinstance(node, ast.Attribute) and _is_sys(node.value)):
        return False
    # `sys` may have another name, and so may its `path`.
    if isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, ast.Store):
        return isinstance(node, ast.Subscript) and _is_environ(node.value)
    return all(map(_is_quiet, ast.iter_child_nodes(node)))


def _is_environ(node: ast.AST) -> bool:
    """Return whether this is os.environ, which many scripts set first. Python has read its variables before."""
    return getattr(node, "attr", getattr(node, "id", "")) == "environ"


def _is_sys(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "sys"


if __name__ == "__main__":
    main()
