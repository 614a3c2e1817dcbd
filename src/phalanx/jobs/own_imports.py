"""The job's own modules that its script is sure to import, and that an ignore file keeps on this machine."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from phalanx import guest_file
from phalanx.code.code_tree import CodeTree
from phalanx.runner.starter.check import python_target
from phalanx.runner.starter.imports import Reader

_LARGEST_BYTES = 1 << 20


def left_out(tree: CodeTree, command: tuple[str, ...]) -> dict[str, str]:
    """Return the files and directories that stay here, under the names of the modules that a command imports."""
    target = python_target(command) if tree.left_out else []
    if not target:
        return {}
    script = Path(tree.directory, target[-1])
    reader = _Reader(tree.directory if target[0] == "-m" else script.parent, tree.directory)
    try:
        entered = guest_file.answering(script, lambda name: reader.run(target, str(script), name))
    except (OSError, SyntaxError, ValueError, RecursionError):
        entered = reader.entered  # its Python says what is wrong with it
    return {place: kept for place in entered if (kept := tree.what_keeps(f"{place}.py", place))}


class _Reader(Reader):
    """Notes which of the job's modules are imported. It opens nothing outside the code, and no FIFO."""

    def __init__(self, root: Path, code: Path) -> None:
        super().__init__(str(root))
        self._code = code
        self.entered: list[str] = []
        self._name: Callable[[str], object] = lambda _: None

    def run(self, target: list[str], script: str, name: Callable[[str], object]) -> list[str]:
        """Follow a module or read a script; return what is imported. `name` gets each path before that is read."""
        self._name = name
        _ = self.follow(target[1]) if target[0] == "-m" else self.read(script)
        return self.entered

    def content(self, path: str) -> bytes:
        return guest_file.read(Path(path), _LARGEST_BYTES, within=self._code)

    def _enter(self, place: str) -> bool:
        self._name(place)
        self.entered.append(os.path.relpath(place, self._code))
        return super()._enter(place)
