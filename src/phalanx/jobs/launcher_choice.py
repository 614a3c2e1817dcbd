"""Chooses a launcher by what a script imports, where the user has named none."""

from __future__ import annotations

import ast
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from phalanx.jobs.own_imports import MOST_BYTES, read_script
from phalanx.runner.starter.check import SHELLS, python_target, without_wrappers

DEFAULT = "mpi"
_MOST_FILES, _MOST_SCRIPTS, _LARGEST_SHELL_SCRIPT = 100, 10, 1 << 16
# Of a dotted name; a sign has fewer. A script could have names of a million words.
_MOST_WORDS, _LONGEST_WORD = 8, 100
_WORD_ENDS = re.compile(r"[\s;&|()'\"]+")
_RUNS_PYTHON = re.compile(r"(i?python|pypy)[\d.]*|uv|coverage|viztracer|scalene|kernprof")
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
        "transformers.Trainer",
        "transformers.Seq2SeqTrainer",
        "trl",
        "composer",
        "ignite.distributed",
        "colossalai",
        "megatron",
    ),
    "jax": ("jax.distributed",),
    "tensorflow": ("tensorflow.distribute", "tensorflow.estimator"),
    "dmlc": ("mxnet.kv", "mxnet.kvstore"),
    "spark": ("pyspark",),
}


class _Use(NamedTuple):
    """A dotted name that a script uses. `is_certain`: no `if` or failed import keeps it from being imported."""

    script: str
    name: str
    is_certain: bool


class Choice(NamedTuple):
    """The launcher, and the script's name and the name in it that decided; "" for the default."""

    launcher: str
    script: str = ""
    sign: str = ""


def choose(directory: Path, command: Sequence[str]) -> Choice:
    """Read the Python script that a command runs, with the modules of the directory that it imports.

    What is imported only in an `if`, or in a `try` that goes on without it, decides if nothing else does. What can't
    be read, or is no Python, decides nothing: the job says so when it starts.
    """
    found = list(_names(directory, _targets(directory, command)))
    return _sign_in(use for use in found if use.is_certain) or _sign_in(found) or Choice(DEFAULT)


def _sign_in(uses: Iterable[_Use]) -> Choice | None:
    uses = list(uses)
    for launcher, signs in _SIGNS.items():
        for use in uses:
            sign = next((sign for sign in signs if f"{use.name}.".startswith(f"{sign}.")), "")
            if sign:
                return Choice(launcher, use.script, sign)
    return None


def _targets(directory: Path, command: Sequence[str]) -> list[str]:
    """Return the paths that may be the script or module in the directory; none for another program."""
    words = without_wrappers(command) or list(command)
    if not words:
        return []
    found = python_target(words) or ([words[0]] if words[0].endswith(".py") else [])
    if found and found[0] != "-m":
        return found
    module = [f"{found[1].replace('.', '/')}.py"] if found else []
    text = _WORD_ENDS.split(shell_text(directory, words)) if is_shell(words) else words
    return [*module, *islice(_behind_python(text), _MOST_SCRIPTS)]


def _behind_python(words: Iterable[str]) -> Iterator[str]:
    """Yield the scripts behind a word that runs Python, in any program's words."""
    runs = False
    for word in words:
        if runs and word.endswith(".py"):
            yield word
        runs |= bool(_RUNS_PYTHON.fullmatch(word.rpartition("/")[2]))


def is_shell(words: Sequence[str]) -> bool:
    return words[0].endswith((".sh", ".bash")) or words[0].rpartition("/")[2] in SHELLS


def shell_text(directory: Path, command: Sequence[str]) -> str:
    """Return what a shell reads, without comments: the text behind -c, or its script; "" for any other program."""
    words = without_wrappers(command) or list(command)
    if not words or not is_shell(words):
        return ""
    rest = words[words[0].rpartition("/")[2] in SHELLS :]
    while rest and rest[0].startswith("-"):
        if "c" in rest[0] and not rest[0].startswith("--"):
            return " ".join(rest[1:2])
        rest = rest[2 if rest[0].endswith("o") else 1 :]
    try:
        text = (
            read_script(directory / rest[0], _LARGEST_SHELL_SCRIPT, directory).decode(errors="replace") if rest else ""
        )
    except (OSError, ValueError):
        return ""
    return re.sub(r"(?m)^[ \t]*#.*", "", text.replace("\\\n", " "))


def _names(directory: Path, targets: Iterable[str]) -> Iterator[_Use]:
    """Yield each dotted name that the scripts and the directory's own modules use."""
    waiting, seen, left = deque(targets), set[str](), MOST_BYTES
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
        certain = set(map(_cut, _used(tree, _optional(tree))))
        for name in dict.fromkeys(map(_cut, _used(tree, set()))):
            yield _Use(path, name, name in certain)
            module = name.replace(".", "/")
            # A name of a package may be its module, or something in it.
            tops = dict.fromkeys(("", here and f"{here}/"))
            places = [f"{top}{place}" for place in (module, module.rpartition("/")[0]) for top in tops if place]
            waiting += [f"{place}{end}" for place in places for end in (".py", "/__init__.py")]


def _optional(tree: ast.AST) -> set[int]:
    """Return the ids of the imports without which the script may go on."""
    found: set[int] = set()
    waiting: list[tuple[ast.AST, bool]] = [(tree, False)]
    while waiting:
        node, is_optional = waiting.pop()
        if is_optional and isinstance(node, ast.Import | ast.ImportFrom):
            found.add(id(node))
        is_optional |= _is_conditional(node)
        waiting += [(part, is_optional) for part in ast.iter_child_nodes(node)]
    return found


def _is_conditional(node: ast.AST) -> bool:
    """Whether the statement may leave out its parts: not `if __name__ == "__main__"`, which a script always runs."""
    if isinstance(node, ast.If):
        return all(part.id != "__name__" for part in ast.walk(node.test) if isinstance(part, ast.Name))
    return isinstance(node, ast.Try) and bool(node.handlers)


def _used(tree: ast.AST, left_out: set[int]) -> Iterator[str]:
    """Yield the dotted names that are imported, and those that are looked up in an imported module.

    `left_out`: the ids of imports that don't count.
    """
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        if id(node) in left_out:
            continue
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
