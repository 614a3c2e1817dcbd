"""What a node lacks is reported before anything starts."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from phalanx.runner.starter.check import Findings, problem

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
    ("command", "message", "code"),
    [
        (["nosuch"], "command 'nosuch' is not on {nodes} (PATH /usr/bin:/bin)", 127),
        (["train.py"], "`python train.py` runs it", 127),
        (["go"], "`./go` runs it", 127),
        (["LR=0.1", "python3", "train.py"], "`phalanx run --env LR=0.1 -- COMMAND` sets", 127),
        (["cd", "sub"], "`sh -c 'cd …'` runs", 127),
        (["./train.py"], "`python ./train.py` runs it", 127),
        (["python3", "-u", "missing.py"], "'missing.py', which is not in the job's directory", 2),
        (["bash", "missing.sh"], "'missing.sh'", 2),
    ],
)
def test_what_is_missing_is_named_with_the_way_out(work, command, message, code):
    text, got = problem(command, work, ENV)
    assert message in text
    assert got == code


SCRIPTS = {
    "crlf": b"#!/bin/sh\r\necho\r\n",
    "crlf-env": b"#!/usr/bin/env sh\r\necho\r\n",
    "plain": b"echo\n",
    "plain.py": b"import os\n",
    "empty": b"",
    "old": b"#!/usr/bin/python2.7\nprint 1\n",
    "old-env": b"#!/usr/bin/env -S A=1 python2.7 -u\nprint 1\n",
    "space": b"#! /bin/sh -e\n",
    "env": b"#!/usr/bin/env -S A=1 sh -e\n",
    "env-u": b"#!/usr/bin/env -S -u HOME sh\n",
    "bom": b"\xef\xbb\xbf#!/bin/sh\n",
    "utf-16": "\ufeff#!/bin/sh\n".encode("utf-16-le"),
    "elf": b"\x7fELF\0",
    "wine.exe": b"MZ\0\0",
}


@pytest.fixture
def scripts(work):
    """Executable files of many kinds, and one that is not executable."""
    for name, content in SCRIPTS.items():
        Path(work, name).write_bytes(content)
        Path(work, name).chmod(0o755)
    Path(work, "shut").write_bytes(SCRIPTS["space"])
    return work


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["./crlf"], "'./crlf' on {nodes} has Windows line ends (CRLF)"),
        (["./crlf-env"], "has Windows line ends (CRLF)"),
        (["sh", "crlf"], "'crlf' on {nodes} has Windows line ends (CRLF)"),
        (["bash", "-e", "./crlf"], "has Windows line ends (CRLF)"),
        (["env", "-u", "HOME", "A=1", "./crlf"], "'./crlf' on {nodes} has Windows line ends (CRLF)"),
        (["nice", "-n", "5", "timeout", "-k", "1", "9", "sh", "crlf"], "has Windows line ends (CRLF)"),
        (["stdbuf", "-oL", "./old"], "'/usr/bin/python2.7', which"),
        (["nohup", "no-such"], "command 'no-such' is not on {nodes}"),
        (["env", "sh", "."], "should run '.', which is a directory on {nodes}"),
        (["./bom"], "begins with a byte order mark"),
        (["./utf-16"], "begins with a byte order mark"),
        (["./plain"], "has no `#!` line, so nothing can start it: `sh ./plain` runs it"),
        (["./plain.py"], "has no `#!` line, so nothing can start it: `python ./plain.py` runs it"),
        (["./empty"], "has no `#!` line"),
        (["./old"], "'/usr/bin/python2.7', which './old' begins with (`#!`), is not on {nodes}"),
        (["./old-env"], "'python2.7', which './old-env' begins with (`#!`), is not on {nodes}"),
        (["./shut"], "is not executable: `chmod +x ./shut` makes it so, and `sh ./shut` runs it"),
    ],
)
def test_a_script_that_can_not_be_started_is_named_with_what_to_change(scripts, command, message):
    text, code = problem(command, scripts, ENV)
    assert message in text
    assert code == 127


@pytest.mark.parametrize(("content", "is_executable"), [("plain", True), ("crlf", True), ("plain", False)])
@pytest.mark.parametrize("name", ["a$(touch pwned)", "a;touch pwned", "a`touch pwned`'", "-a touch {nodes} {x}"])
@pytest.mark.parametrize("end", ["", ".py"])
def test_advice_is_safe_to_type_whatever_the_name_of_a_file(scripts, content, is_executable, name, end):
    Path(scripts, name + end).write_bytes(SCRIPTS[content])
    Path(scripts, name + end).chmod(0o755 if is_executable else 0o644)
    text, _ = problem([f"./{name}{end}"], scripts, ENV)
    typed = text[text.index(": `") + 3 : text.rindex("`")].split("` makes it so, and `")
    assert all(shlex.split(line)[-1] == f"./{name}{end}" for line in typed), text


@pytest.mark.parametrize(
    "command",
    [
        "./space",
        "./env",
        "./env-u",
        "./elf",
        "./wine.exe",
        "sh plain",
        "python3 crlf",
        "sh shut",
        "env -C / crlf",
        "env PATH=/x none",
        "env -S sh",
        "env",
        "taskset -cp 0 1",
        "sh /dev/null",
        "env A=1",
    ],
)
def test_any_other_program_is_left_to_the_kernel(scripts, command):
    assert problem(command.split(), scripts, ENV) == ("", 0)


def test_only_a_regular_file_is_read(work):
    os.mkfifo(f"{work}/pipe")
    for command in ["sh", "pipe"], ["sh", "/dev/stdin"], ["python3", "pipe"]:
        assert problem(command, work, ENV) == ("", 0)


def found(problem: str = "", code: int = 0, taken: tuple[int, ...] = ()) -> dict[str, object]:
    return {"problem": problem, "code": code, "taken": list(taken)}


def test_nodes_that_lack_the_same_share_a_line():
    findings = Findings()
    for node in ("n3", "n1"):
        findings.add(node, found("no mpiexec on {nodes}", 127))
    findings.add("n2", found("no data on {nodes}", 2))
    assert findings
    assert (findings.message, findings.code) == ("no mpiexec on n1, n3\nno data on n2", 2)


def test_nodes_without_problems_are_not_mentioned():
    findings = Findings()
    findings.add("n1", found())
    assert (bool(findings), findings.taken) == (False, set())


def test_taken_ports_are_known_with_their_nodes():
    findings = Findings()
    findings.add("n1", found("port 5 on {nodes} is taken", 2, (5,)))
    assert findings.taken == {("n1", 5)}
