"""The job's own modules that its script is sure to import, and that an ignore file keeps on this machine."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from phalanx import guest_file
from phalanx.code.code_tree import CodeTree
from phalanx.runner.starter.check import python_target
from phalanx.runner.starter.imports import Reader

_LARGEST_BYTES = 1 << 20
MOST_BYTES = 4 << 20
"""Of all files that are read of one script and the modules that it imports."""
# Python's parser keeps each beginning of an import's name: of 200,000 words, 40 GB.
_MOST_WORDS = 1000


def left_out(tree: CodeTree, command: tuple[str, ...]) -> dict[str, str]:
    """Return the files and directories that stay here, under the names of the modules that a command imports."""
    target = python_target(command) if tree.left_out else []
    if not target:
        return {}
    script = Path(tree.directory, target[-1])
    reader = _Reader(tree.directory if target[0] == "-m" else script.parent, tree.directory)
    try:
        entered = guest_file.answering(script, lambda name: reader.run(target, str(script), name))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        entered = reader.entered  # its Python says what is wrong with it
    return {place: kept for place in entered if (kept := tree.what_keeps(f"{place}.py", place))}


def read_script(path: Path, most: int, within: Path) -> bytes:
    """Return a Python file of the repository. Raises OSError, or ValueError for what must not be parsed here."""
    content = guest_file.read(path, min(most, _LARGEST_BYTES), within=within)
    lines = content.replace(b"\\\r\n", b"").replace(b"\\\n", b"").translate(None, b" \t\f")
    if any(name.count(b".") > _MOST_WORDS for name in re.findall(rb"[\w.\x80-\xff]+", lines)):
        raise ValueError("a name has too many words")
    return content


class _Reader(Reader):
    """Notes which of the job's modules are imported. It opens nothing outside the code, and no FIFO."""

    def __init__(self, root: Path, code: Path) -> None:
        super().__init__(str(root))
        self._code = code
        self.entered: list[str] = []
        self._left = MOST_BYTES
        self._name: Callable[[str], object] = lambda _: None

    def run(self, target: list[str], script: str, name: Callable[[str], object]) -> list[str]:
        """Follow a module or read a script; return what is imported. `name` gets each path before that is read."""
        self._name = name
        _ = self.follow(target[1]) if target[0] == "-m" else self.read(script)
        return self.entered

    def content(self, path: str) -> bytes:
        content = read_script(Path(path), self._left, self._code)
        self._left -= len(content)
        return content

    def is_installed(self, name: str) -> bool:  # noqa: ARG002
        return True  # this machine's packages are not the nodes'

    def _enter(self, place: str) -> bool:
        self._name(place)
        self.entered.append(os.path.relpath(place, self._code))
        return super()._enter(place)
