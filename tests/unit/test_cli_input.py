"""Which programs of `phalanx run` would read their script from its input, and what is said about them."""

from __future__ import annotations

import os

import pytest

from phalanx.cli import input
from phalanx.cli.input import reads_script


@pytest.mark.parametrize(
    "line",
    [
        "python",
        "python -",
        "python3.12 -u - --epochs 3",
        "/usr/bin/python3 -W ignore -X dev",
        "python -uB -Wignore",
        "pypy3 -i",
        "sh",
        "sh -s a b",
        "sh -",
        "bash",
        "bash -eux",
        "bash -eo pipefail",
        "bash -xs -- a",
        "bash --norc --rcfile x",
        "bash +e",
        "zsh -l",
        "R --no-save --quiet",
        "R --vanilla data.csv",
        "Rscript --vanilla - a",
        "perl",
        "perl -w - a",
        "perl -I lib -Mstrict",
        "node",
        "node --require x -",
        "env python -",
        "/usr/bin/env -u A B=c bash",
        "nice -n 5 python3",
        "timeout -s INT 60 env A=1 python -u -",
        "stdbuf -oL bash",
        "numactl -N 0 --membind=0 taskset -c 0-3 python",
        "python /dev/stdin --epochs 3",
        "sh -e /dev/fd/0",
        "ruby -w",
        "julia -t 4 -",
    ],
)
def test_an_interpreter_without_a_script_reads_one(line):
    assert reads_script(line.split())


@pytest.mark.parametrize(
    "line",
    [
        "python t.py -",
        "python -u t.py",
        "python -c pass",
        "python -uc pass",
        "python -m pkg",
        "python -Wignore t.py",
        "python -W ignore t.py",
        "python --version",
        "python -- t.py",
        "sh t.sh",
        "bash -c 'cat'",
        "bash -lc x",
        "bash -eo pipefail t.sh",
        "bash --rcfile x t.sh",
        "sh - t.sh",
        "R -f t.R",
        "R --file=t.R",
        "R -e 1",
        "R CMD check",
        "Rscript t.R -",
        "perl t.pl",
        "perl -ne print",
        "perl -i.bak t.pl",
        "node t.js",
        "node -e 1",
        "node --require x t.js",
        "env python t.py",
        "env A=b",
        "env -S python",
        "nice -n 5 python3 t.py",
        "timeout 60 bash t.sh",
        "taskset -p 1",
        "julia -t 4 t.jl",
        "ruby -I lib t.rb",
        "cat",
        "python-config",
        "./train",
        "",
    ],
)
def test_what_has_a_script_or_is_no_interpreter_reads_none(line):
    assert not reads_script(line.split())


@pytest.fixture
def piped(monkeypatch):
    """The command's input is the end of a pipe."""
    read, write = os.pipe()
    os.close(write)
    with os.fdopen(read) as pipe:
        monkeypatch.setattr(input.sys, "stdin", pipe)
        yield


def test_a_script_that_would_be_lost_is_refused_before_it_starts(piped):
    with pytest.raises(input.click.UsageError, match="run --stdin"):
        input.refuse_unread(("python", "-"))
    input.refuse_unread(("python", "t.py"))


def test_what_is_sent_has_a_limit_and_is_no_terminal(tmp_path, monkeypatch):
    (tmp_path / "script").write_bytes(b"abc\xff")
    monkeypatch.setattr(input, "MOST_BYTES", 4)
    with (tmp_path / "script").open() as file:
        monkeypatch.setattr(input.sys, "stdin", file)
        assert input.read() == b"abc\xff"
    monkeypatch.setattr(input, "MOST_BYTES", 3)
    with (tmp_path / "script").open() as file:
        monkeypatch.setattr(input.sys, "stdin", file)
        with pytest.raises(input.click.UsageError, match="phalanx put"):
            input.read()
    monkeypatch.setattr(input.sys, "stdin", None)
    with pytest.raises(input.click.UsageError, match="< FILE"):
        input.read()


def test_the_null_device_and_a_closed_input_refuse_nothing(monkeypatch):
    with open(os.devnull) as null:
        monkeypatch.setattr(input.sys, "stdin", null)
        input.refuse_unread(("python", "-"))
    input.refuse_unread(("python", "-"))
    monkeypatch.setattr(input.sys, "stdin", None)
    input.refuse_unread(("python", "-"))
