"""Read phalanx.yaml into a ClusterSpec, or raise a SpecError with every mistake and its line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from phalanx.data import table
from phalanx.errors import Mistakes, SpecError, in_lines
from phalanx.spec import spec_checks as checks
from phalanx.spec import spec_yaml
from phalanx.spec.spec import KEYS, ClusterSpec, check
from phalanx.spec.spec_checks import WrongError
from phalanx.spec.spec_job import JOB
from phalanx.spec.spec_yaml import Mistake, Value


def load(path: Path | str) -> ClusterSpec:
    """Read and check a spec. SpecError lists all mistakes as `file:line: field: what; hint`, in order of lines."""
    entries, mistakes = spec_yaml.read(Path(path))
    mistakes += [_unknown(name, value) for name, value in entries.items() if name not in KEYS]
    mistakes += [_missing(name) for name, key in KEYS.items() if key.required and name not in entries]
    values, wrong_kinds = _values(entries)
    _, wrong_values = check(values)
    mistakes += [_mistake(name, error, entries) for name, error in (wrong_values | wrong_kinds).items()]
    if mistakes:
        ordered = sorted(mistakes, key=lambda m: (m.line, m.field))
        raise in_lines(*(one.error(str(path)) for one in ordered))
    return ClusterSpec(**values)


def load_value(path: Path | str, name: str) -> Any:
    """Return the value of one key, even if others are wrong; None if it is missing. Raises SpecError."""
    entries, _ = spec_yaml.read(Path(path))
    if name not in entries:
        return None
    try:
        return KEYS[name].accept(KEYS[name].rule.kind.read(entries[name]), {})
    except WrongError as error:
        raise in_lines(_mistake(name, error, entries).error(str(path))) from None


@contextmanager
def with_location(path: Path | str) -> Iterator[None]:
    """Add the file and line of a key to each mistake whose message begins with that key, such as "type: …"."""
    try:
        yield
    except SpecError as error:
        found = error.mistakes or (error,)
        if not any(_key(one) in KEYS for one in found):
            raise
        entries, _ = spec_yaml.read(Path(path))
        mistakes = Mistakes()
        for one in found:
            mistakes.add(_located(one, path, entries))
        try:
            mistakes.report()
        except SpecError as located:
            raise located from error


def located(path: Path | str, key: str, text: str) -> str:
    """Return a text about a key with the file and the key's line before it."""
    entries, _ = spec_yaml.read(Path(path))
    return f"{path}{_line(key, entries)}: {key}: {text}"


def _key(mistake: SpecError) -> str:
    return mistake.message.partition(":")[0]


def _located(mistake: SpecError, path: Path | str, entries: dict[str, Value]) -> SpecError:
    key = _key(mistake)
    if key not in KEYS:
        return mistake
    return SpecError(f"{path}{_line(key, entries)}: {mistake.message}", mistake.hint, code=mistake.code)


def _line(key: str, entries: dict[str, Value]) -> str:
    return f":{entries[key].line}" if key in entries else ""


def _values(entries: dict[str, Value]) -> tuple[dict[str, Any], dict[str, WrongError]]:
    """Return the values of the right kind by field, and the errors of the others by key."""
    values: dict[str, Any] = {}
    wrong: dict[str, WrongError] = {}
    for name in KEYS.keys() & entries.keys():
        key = KEYS[name]
        try:
            values[key.field] = key.rule.kind.read(entries[name])
        except WrongError as error:
            wrong[name] = error
    return values, wrong


def _unknown(name: str, value: Value) -> Mistake:
    word = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    of_job = {key: f"write `{key}` below `job`" for key in JOB.schema()["properties"].keys() - KEYS}
    hint = {**table("other_tools")["keys"], **of_job}.get(word)
    hint = hint or (f"write `{word}`" if word in KEYS else checks.nearest(name, KEYS))
    return Mistake(value.line, name, "is not a key of phalanx.yaml", hint, code="unknown-key")


def _missing(name: str) -> Mistake:
    hint = f"add a line such as `{KEYS[name].line(KEYS[name].example)}`"
    return Mistake(1, name, "is missing", hint, code="missing-key")


def _mistake(name: str, error: WrongError, entries: dict[str, Value]) -> Mistake:
    """Return the mistake at the line of its key, or at line 1 if the file does not have the key."""
    line = entries[name].line if name in entries else 1
    return Mistake(line, name, error.what, error.hint, code=error.code)
