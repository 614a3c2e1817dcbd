"""The input of `phalanx run`: read for the job with --stdin, else left alone, and no program may wait for it unseen."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import click

from phalanx.runner.starter.check import without_wrappers

MOST_BYTES = 64 << 20
_INPUT = ("/dev/stdin", "/dev/fd/0")


class _Program(NamedTuple):
    """The options of an interpreter, as letters and long names.

    With one of `code` it reads no script, one of `valued` has a value, and what follows one of `attached` in its word
    is a value. `script` is false for a program whose plain words are no scripts.
    """

    code: frozenset[str]
    valued: frozenset[str] = frozenset()
    attached: str = ""
    script: bool = True


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SHELL = _Program(_set("c --version --help"), _set("o O --rcfile --init-file"))
_PROGRAMS = {
    r"(python|pypy)[\d.]*t?": _Program(_set("c m V h ? --version --help"), _set("W X --check-hash-based-pycs")),
    r"(ba|da|z|k|mk)?sh": _SHELL,
    r"perl[\d.]*": _Program(_set("e E v V h ? --version --help"), _set("I"), "iIMmFCDx"),
    r"node(js)?": _Program(
        _set("e p v h i --eval --print --version --help --interactive --test --run"),
        _set("r C --require --import --conditions --loader --experimental-loader --input-type"),
    ),
    r"ruby[\d.]*": _Program(_set("e v h --version --help"), _set("I r C"), "IrCEFKTWx"),
    r"julia": _Program(
        _set("e E v h --eval --print --version --help"), _set("C H J L p t m --project --threads --procs")
    ),
    r"R": _Program(_set("f e h --file --version --help --args"), _set("g --gui"), script=False),
}


def refuse_unread(argv: Sequence[str]) -> None:
    """Raise UsageError for an interpreter that would read this command's input as its script, and find none."""
    if _is_data() and reads_script(argv):
        name = without_wrappers(argv)[0]
        raise click.UsageError(
            f"{name} would read its script from this command's input, which stays on this machine: "
            "send it with `phalanx run --stdin`, or name a script behind the program"
        )


def read() -> bytes:
    """Return this command's input, to its end. Raises UsageError for a terminal, none, and more than MOST_BYTES."""
    if sys.stdin is None or sys.stdin.isatty():
        raise click.UsageError("--stdin reads a file or a pipe: add `< FILE`")
    data = sys.stdin.buffer.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise click.UsageError(
            f"--stdin: the input is larger than {MOST_BYTES >> 20} MiB; "
            "upload it with `phalanx put`, and read it there: `sh -c 'PROGRAM < /efs/FILE'`"
        )
    return data


def reads_script(argv: Sequence[str]) -> bool:
    """Whether these words start an interpreter without a script, which reads one from its input."""
    words = without_wrappers(argv)
    name = Path(words[0]).name if words else ""
    if name == "Rscript":
        return next((word for word in words[1:] if not word.startswith("--")), "") == "-"
    program = next((program for pattern, program in _PROGRAMS.items() if re.fullmatch(pattern, name)), None)
    return program is not None and _has_no_script(program, words[1:])


def _has_no_script(program: _Program, words: Sequence[str]) -> bool:
    is_shell, left = program is _SHELL, iter(words)
    for word in left:
        if word in ("-", "--"):
            # A shell takes both as the end of its options.
            return (word == "-" and not is_shell) or next(left, "-") == "-"
        if word.startswith("--"):
            name, is_joined, _ = word.partition("=")
            if name in program.code:
                return False
            if name in program.valued and not is_joined:
                next(left, None)
        elif word.startswith("-") or (is_shell and word.startswith("+")):
            for number, letter in enumerate(word[1:], 2):
                if letter in program.code:
                    return False
                if is_shell and letter == "s":
                    return True
                if letter in program.valued and number == len(word):
                    next(left, None)
                if letter in program.attached or (letter in program.valued and not is_shell):
                    break
        elif program.script or word == "CMD":
            return word in _INPUT
    return True


def _is_data() -> bool:
    """Whether this command's input is a file or a pipe, and no terminal, device or socket."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):
        return False  # it is closed, or no file of the system
    return stat.S_ISREG(mode) or stat.S_ISFIFO(mode)
