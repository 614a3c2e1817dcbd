"""Which samples there are, and their labels: from a folder with a sub-folder for each class, or from a table."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from phalanx.counts import first_of
from phalanx.guest_file import answering, leads_out

PATH, LABEL = "path", "label"
Name = Callable[[str], object]
"""Called with each path before that is read."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
# `cls` is the label's.
_EXTENSION = re.compile(r"(?!cls$)[a-z0-9]{1,16}")
# Labels are numbers of 32 bits, as MXNet has them.
_LARGEST = 3.4e38
_SHOWN = 3


class PackError(Exception):
    """The shards can't be packed; the second argument, if there is one, says what to do."""

    def __init__(self, *texts: str, code: str) -> None:
        super().__init__(*texts)
        self.code = code


@dataclass(frozen=True)
class Sample:
    """A file with its label or labels. `name` is its path relative to the source."""

    name: str
    path: str
    labels: tuple[float, ...]
    bytes: int
    modified_ns: int


@dataclass(frozen=True)
class Samples:
    """All samples of a source. `classes` are the names of the labels 0, 1 …; () where labels are numbers."""

    all: list[Sample]
    classes: tuple[str, ...] = ()
    left_out: int = 0


def find(source: str) -> Samples:
    """Return the samples of a folder, of a CSV file or of MXNet's list. Raises PackError, OSError."""
    return answering(source, lambda name: _find(source, name))


def _find(source: str, name: Name) -> Samples:
    if os.path.isdir(source):
        return _of_folder(source, name)
    reader = {".csv": _of_csv, ".lst": _of_list}.get(os.path.splitext(source)[1].lower())
    if reader is None:
        raise PackError(
            f"{source} is neither a folder nor a table",
            "Tables are .csv (path,label) and MXNet's .lst files.",
            code="bad-samples",
        )
    return reader(source, name)


def _of_folder(source: str, name_it: Name) -> Samples:
    found, outside = [], 0
    for directory, names, files in os.walk(source):
        name_it(directory)
        names[:] = sorted(name for name in names if not name.startswith("."))
        for file in sorted(file for file in files if not file.startswith(".")):
            name = os.path.relpath(os.path.join(directory, file), source).replace(os.sep, "/")
            if "/" in name:
                found.append((name, name.partition("/")[0]))
            else:
                outside += 1
    if not found:
        raise PackError(
            f"{source} has no sub-folders with files", "Make one for each class, or give a table.", code="bad-samples"
        )
    return _of_classes(source, found, name_it, outside)


def _of_csv(source: str, name_it: Name) -> Samples:
    with open(source, newline="", encoding="utf-8-sig") as file:
        try:
            rows = csv.DictReader(_named(file, source, name_it))
            if not {PATH, LABEL} <= set(rows.fieldnames or ()):
                raise PackError(
                    f"{source} has the columns {', '.join(rows.fieldnames or ()) or '(none)'}",
                    f"It needs {PATH} and {LABEL}; paths are relative to the table.",
                    code="bad-samples",
                )
            found = [(row[PATH] or "", row[LABEL] or "") for row in rows]
        except (csv.Error, UnicodeDecodeError) as error:
            raise PackError(f"{source} can't be read as a table: {error}", code="bad-samples") from error
    without = [name for name, label in found if not label]
    if without:
        raise PackError(f"{source}: {_some('path', without)}: no label", code="bad-samples")
    root = os.path.dirname(source)
    if all(_is_number(label) for _, label in found):
        return Samples(_samples(root, [name for name, _ in found], [(float(label),) for _, label in found], name_it))
    return _of_classes(root, found, name_it)


def _of_list(source: str, name_it: Name) -> Samples:
    """Read a list as MXNet's im2rec writes it: index, one label or several, and path, separated by tabs."""
    with open(source, encoding="utf-8", errors="surrogateescape") as file:
        lines = _named(file, source, name_it)
        rows = [line.rstrip("\n").split("\t") for line in lines if line.strip()]
    wrong = [str(number) for number, row in enumerate(rows, 1) if len(row) < 3 or not all(map(_is_number, row[:-1]))]
    if wrong:
        raise PackError(
            f"{source}: {_some('line', wrong)}: not an index, labels and a path, separated by tabs", code="bad-samples"
        )
    labels = [tuple(map(float, row[1:-1])) for row in rows]
    return Samples(_samples(os.path.dirname(source), [row[-1] for row in rows], labels, name_it))


def _of_classes(root: str, found: Sequence[tuple[str, str]], name_it: Name, left_out: int = 0) -> Samples:
    """Return samples whose labels are the positions of their classes in alphabetical order."""
    classes = sorted({name for _, name in found})
    numbers = {name: float(number) for number, name in enumerate(classes)}
    samples = _samples(root, [name for name, _ in found], [(numbers[name],) for _, name in found], name_it)
    return Samples(samples, tuple(classes), left_out)


def _samples(root: str, names: Sequence[str], labels: Iterable[tuple[float, ...]], name_it: Name) -> list[Sample]:
    """Return the samples. Raises PackError that names the files that are missing, or whose names can't be kept."""
    if not names:
        raise PackError("the table has no rows", code="bad-samples")
    found, wrong, inside = [], [], _Inside(root)
    for name, own in zip(names, labels):
        path = os.path.join(root, name)
        name_it(path)
        try:
            status = os.stat(path)
        except (OSError, ValueError):
            wrong.append(f"{name!r} is missing")
            continue
        if not os.path.isfile(path) or _CONTROL.search(name):
            wrong.append(f"{name!r} is not a file, or has control characters in its name")
        elif not inside.has(path):
            wrong.append(f"{name!r} leads out of {root or '.'}")
        found.append(Sample(name, path, own, status.st_size, status.st_mtime_ns))
    if wrong:
        raise PackError(first_of(wrong, "; ", most=_SHOWN), code="bad-samples")
    return found


def _named(lines: Iterable[str], source: str, name_it: Name) -> Iterator[str]:
    for line in lines:
        name_it(source)
        yield line


class _Inside:
    """Tells which files are in a folder, links resolved: a data set's author may link to others of this machine."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._directories: dict[str, bool] = {}

    def has(self, path: str) -> bool:
        if os.path.islink(path):
            return not leads_out(path, self._root)
        directory = os.path.dirname(path)
        if directory not in self._directories:
            self._directories[directory] = not leads_out(directory, self._root)
        return self._directories[directory]


def _is_number(text: str) -> bool:
    try:
        return abs(float(text)) <= _LARGEST
    except ValueError:
        return False


def _some(what: str, names: Sequence[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return f"{what}{'s' if len(names) > 1 else ''} {shown}" + (" …" if len(names) > _SHOWN else "")


def extension_of(sample: Sample) -> str:
    """Return the extension of a sample's file, by which readers choose how to decode it; `bin` if it has none."""
    extension = os.path.splitext(sample.name)[1][1:].lower()
    return extension if _EXTENSION.fullmatch(extension) else "bin"
