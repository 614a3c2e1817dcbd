"""Chooses a launcher by what a script imports, where the user has named none."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from phalanx.jobs.own_imports import MOST_BYTES, read_script
from phalanx.runner.starter.check import python_target

DEFAULT = "mpi"
_MOST_FILES = 100
# Of a dotted name; a sign has fewer. A script could have names of a million words.
_MOST_WORDS, _LONGEST_WORD = 8, 100
# Names that only a program for this launcher uses, the most telling launcher first: Ray's programs use
# torch.distributed, too. Longer names begin with these.
_SIGNS = {
    "mpi": ("mpi4py", "horovod", "chainermn", "mpi4jax"),
    "ray": ("ray.train", "ray.tune", "ray.init", "ray.data"),
    "deepspeed": ("deepspeed",),
    "torchrun": (
        "torch.distributed",
        "torch.nn.parallel.DistributedDataParallel",
        "accelerate",
        "lightning",
        "pytorch_lightning",
        "torchtitan",
    ),
    "jax": ("jax.distributed",),
    "tensorflow": ("tensorflow.distribute",),
    "spark": ("pyspark",),
}


class Choice(NamedTuple):
    """The launcher, and the script's name and the name in it that decided; "" for the default."""

    launcher: str
    script: str = ""
    sign: str = ""


def choose(directory: Path, command: Sequence[str]) -> Choice:
    """Read the Python script that a command runs, with the modules of the directory that it imports.

    What can't be read, or is no Python, decides nothing: the job says so when it starts.
    """
    target = _target(command)
    if not target:
        return Choice(DEFAULT)
    found = list(_names(directory, target))
    for launcher, signs in _SIGNS.items():
        for script, name in found:
            sign = next((sign for sign in signs if f"{name}.".startswith(f"{sign}.")), "")
            if sign:
                return Choice(launcher, script, sign)
    return Choice(DEFAULT)


def _target(command: Sequence[str]) -> str:
    """Return the path of the script or module in the directory; "" for another program."""
    if not command:
        return ""
    words = python_target(command) or ([command[0]] if command[0].endswith(".py") else [])
    return f"{words[1].replace('.', '/')}.py" if words[:1] == ["-m"] else (words or [""])[0]


def _names(directory: Path, target: str) -> Iterator[tuple[str, str]]:
    """Yield each dotted name that the script and the directory's own modules use, with the file that uses it."""
    waiting, seen, left = deque([target]), set[str](), MOST_BYTES
    while waiting and len(seen) < _MOST_FILES:
        path = waiting.popleft()
        if path in seen:
            continue
        seen.add(path)
        try:
            content = read_script(directory / path, left, directory)
            left -= len(content)
            tree = ast.parse(content)
        except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        here = path.rpartition("/")[0]
        for name in dict.fromkeys(map(_cut, _used(tree))):
            yield path, name
            module = name.replace(".", "/")
            # A name of a package may be its module, or something in it.
            tops = dict.fromkeys(("", here and f"{here}/"))
            places = [f"{top}{place}" for place in (module, module.rpartition("/")[0]) for top in tops if place]
            waiting += [f"{place}{end}" for place in places for end in (".py", "/__init__.py")]


def _used(tree: ast.AST) -> Iterator[str]:
    """Yield the dotted names that are imported, and those that are looked up in an imported module."""
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                known[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
                yield alias.name
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                known[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                yield f"{node.module}.{alias.name}"
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    inside = {id(node.value) for node in attributes}
    for node in attributes:
        words: list[str] = []
        inner: ast.AST = node
        while id(node) not in inside and isinstance(inner, ast.Attribute):
            words.append(inner.attr)
            inner = inner.value
        if words and isinstance(inner, ast.Name) and inner.id in known:
            words = [*_cut(known[inner.id]).split("."), *words[: -_MOST_WORDS - 1 : -1]]
            yield from (".".join(words[:number]) for number in range(2, len(words) + 1))


def _cut(name: str) -> str:
    """Return the beginning of a dotted name, which decides."""
    return ".".join(word[:_LONGEST_WORD] for word in name.split(".", _MOST_WORDS)[:_MOST_WORDS])
