"""What is not on a node is told before anything starts."""

from __future__ import annotations

import pytest

from phalanx.node.runner.check import problem

ENV = {"PATH": "/usr/bin:/bin"}


@pytest.fixture
def work(tmp_path):
    (tmp_path / "train.py").write_text("")
    (tmp_path / "go").write_text("#!/bin/sh\n")
    (tmp_path / "go").chmod(0o755)
    return str(tmp_path)


@pytest.mark.parametrize(
    "command",
    [
        ["true"],
        ["./go"],
        ["/bin/sh", "-c", "nothing"],
        ["python3", "train.py"],
        ["python3", "-u", "-W", "ignore", "train.py", "missing.py"],
        ["python3", "-m", "missing"],
        ["python3", "-c", "pass"],
        ["bash", "-ec", "missing.sh"],
        ["sh", "-"],
    ],
)
def test_what_is_there_passes(work, command):
    assert problem(command, work, ENV) == ("", 0)


@pytest.mark.parametrize(
    ("command", "words", "code"),
    [
        (["nosuch"], "command 'nosuch' is not on {nodes} (PATH /usr/bin:/bin)", 127),
        (["train.py"], "`python train.py` runs it", 127),
        (["go"], "`./go` runs it", 127),
        (["./train.py"], "`python ./train.py` runs it", 127),
        (["python3", "-u", "missing.py"], "'missing.py', which is not in the job's directory", 2),
        (["bash", "missing.sh"], "'missing.sh'", 2),
    ],
)
def test_what_is_missing_is_named_with_the_way_out(work, command, words, code):
    text, got = problem(command, work, ENV)
    assert words in text
    assert got == code
