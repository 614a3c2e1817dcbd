"""Expect errors by their code (docs/errors.md) and by facts: the names, numbers and paths that their text must have."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from phalanx.errors import PhalanxError


def codes(error: BaseException) -> set[str]:
    """Return the codes of an error and of its single mistakes."""
    found = (error, *getattr(error, "mistakes", ()))
    return {getattr(one, "code", "") for one in found}


def each(error: BaseException) -> list[tuple[str, str]]:
    """Return the code and the message of each single mistake, in order."""
    return [(one.code, one.message) for one in getattr(error, "mistakes", ())]


def missing(facts: tuple[object, ...], text: str) -> list[object]:
    """Return the facts that a text does not have."""
    return [fact for fact in facts if str(fact) not in text]


@contextmanager
def raises_code(
    code: str, *facts: object, kind: type[Exception] = PhalanxError
) -> Iterator[pytest.ExceptionInfo[Exception]]:
    """Expect an error with this code and each of these facts."""
    with pytest.raises(kind) as caught:
        yield caught
    assert code in codes(caught.value), caught.value
    assert missing(facts, str(caught.value)) == [], caught.value


def assert_refused(done: subprocess.CompletedProcess[str], code: str, *facts: object) -> None:
    """Require that a command with --json failed with this code and said each of these facts."""
    assert done.returncode != 0, done.stdout
    error = json.loads(done.stdout)["error"]
    assert code in {error["code"], *(one["code"] for one in error["problems"])}, error
    assert missing(facts, f"{error['message']}\n{error['hint']}") == [], error
