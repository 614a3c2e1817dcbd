"""Output of jobs and nodes on the user's terminal: it may colour its text and do nothing else."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
from collections.abc import Iterator

import pytest
from local_clouds import api
from terminals import PHALANX, Terminal, a_cluster

from phalanx.cli.terminal import CLEAR_LINE
from phalanx.node import validate

pytestmark = pytest.mark.cluster

SPEC = "name: loud\ncloud: local\nnodes: 1\nmin: 1\ntype: c5.large\nshared: /efs\nkeep: no\n"
# A title, the screen cleared, a question that types its answer, a link, 8-bit forms of the same, marks of rich; letters
# in another order than they are written in, letters that nobody sees, and those that Persian and emoji need.
NASTY = (
    b"\x1b]0;title\x07 \x1b[2J\x1b[6n \x1b]8;;http://evil\x1b\\link \xc2\x9b31m \x9b31m \x7f\x08 \x1bP "
    b"[bold]x[/bold] [link=http://evil]y[/link] \xe2\x82\xac\ttab \x1b[31mred"
)
NASTY += " \u202egnp.exe\u202c \u2066x\u2069 a\u200bb\ufeff \U000e0041".encode()
NASTY += " \u0645\u06cc\u200c\u062e \U0001f469\u200d\U0001f680".encode()
SHOWN = (
    r"\x1b]0;title\x07 \x1b[2J\x1b[6n \x1b]8;;http://evil\x1b\link \x9b31m \x9b31m \x7f\x08 \x1bP "
    "[bold]x[/bold] [link=http://evil]y[/link] \u20ac\ttab \x1b[31mred"
    r" \u202egnp.exe\u202c \u2066x\u2069 a\u200bb\ufeff \U000e0041"
    " \u0645\u06cc\u200c\u062e \U0001f469\u200d\U0001f680\x1b[0m"
)
UNSEEN = re.compile(
    r"\x1b(?!\[[0-9;]*m)|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f\u200b\u202a-\u202e\u2066-\u2069\ufeff]|\r(?!\n)"
)
FORGE = """
import json, os
path = "../state.json"
state = json.load(open(path))
state.update(name="n\\x1b]0;x\\x07", message="m\\x1b[2J\\x9b\\u202e\\nforged", tail=["t\\x1b]8;;x\\x07\\nforged"])
state.update(load=["forged\\nforged"], nodes=[{"node": "n\\nforged", "message": "m\\nforged", "clean": False}])
state.update(state="failed", ended_at=2.0)
open(path, "w").write(json.dumps(state))
"""

LONG = """
import json
path, text = "../state.json", "x" * 1_000_000
state = json.load(open(path))
state.update(name=text, message=text, tail=[text], load=[text], activity=text, tags={text: text}, command=[text])
state.update(nodes=[{"node": "n", "message": text, "clean": False, "killed": 0}], state="failed", ended_at=2.0)
open(path, "w").write(json.dumps(state))
"""
# Its function's name, its file's and the file that it reads are as nasty as it can make them.
FRAMES = """
import os, sys
nasty = "n\\x1b]0;x\\x07\\x1b[2J\\x9b\\u202e\\n[bold]"
os.mkfifo(nasty.replace("/", ""))
def read(path):
    print("reads", flush=True)
    open(path).read()
read.__code__ = read.__code__.replace(co_name=nasty, co_qualname=nasty, co_filename="f" + nasty)
os.open(nasty, os.O_RDWR)
read(nasty)
"""


@pytest.fixture(scope="module")
def terminal() -> Iterator[Terminal]:
    with a_cluster(SPEC) as terminal:
        (terminal.directory / "nasty").write_bytes(NASTY)
        yield terminal


def on_screen(terminal: Terminal, *arguments: str) -> str:
    """Run `phalanx …` on a terminal; return its output, which must be text and colours only."""
    screen, typed_in = pty.openpty()
    env = {**os.environ, "PHALANX_STATE_DIR": str(terminal.state), "TERM": "xterm-256color", "COLUMNS": "200"}
    null = subprocess.DEVNULL
    process = subprocess.Popen(
        [PHALANX, *arguments], cwd=terminal.directory, env=env, stdin=null, stdout=typed_in, stderr=typed_in
    )
    os.close(typed_in)
    shown = b""
    with open(screen, "rb", buffering=0) as output:
        try:
            while data := output.read(1 << 16):
                shown += data
        except OSError:  # EIO: the last process with the terminal open has closed it
            pass
    process.wait(300)
    # What takes long is shown in a line that phalanx itself clears.
    text = shown.decode().replace(CLEAR_LINE, "")
    assert UNSEEN.findall(text) == [], text
    # Nor is any line like one of phalanx's own.
    assert not re.search("^forged", text, re.MULTILINE), text
    return text.replace("\r\n", "\n")


def test_output_of_a_job_is_shown_and_a_pipe_gets_its_bytes(terminal):
    shown = on_screen(terminal, "run", "--launcher", "exec", "--", "cat", "nasty")
    assert f"[0] \x1b[0m{SHOWN}\n" in shown
    env = {**os.environ, "PHALANX_STATE_DIR": str(terminal.state)}
    logs = [PHALANX, "logs", "--raw"]
    piped = subprocess.run(logs, cwd=terminal.directory, env=env, capture_output=True, timeout=300)
    assert piped.stdout == NASTY
    for options in ((), ("--raw",), ("--timestamps",)):
        assert SHOWN in on_screen(terminal, "logs", *options)


def test_output_of_exec_is_shown_too(terminal):
    terminal.phalanx("put", "nasty")
    assert f"{SHOWN}\n" in on_screen(terminal, "exec", "--", "cat /efs/nasty; cat /efs/nasty >&2; exit 3")
    verdict = json.loads(terminal.phalanx("exec", "--json", "--", "cat /efs/nasty").stdout)[0]
    assert verdict["stdout"].encode() == NASTY.decode(errors="replace").encode()


def test_names_and_reasons_that_a_job_chose_are_shown(terminal):
    terminal.phalanx("run", "--launcher", "exec", "--", "sh", "-c", "exit 3\x1b]0;x\x07", check=False)
    assert r"exit 3\x1b]0;x\x07" in on_screen(terminal, "jobs")
    # A table is for people also in a pipe, whose end may be `less -R` or `watch`.
    assert r"exit 3\x1b]0;x\x07" in terminal.phalanx("jobs").stdout
    assert r"no\x1b[2J" in on_screen(terminal, "run", "--launcher", "exec", "--", "no\x1b[2J")
    (terminal.directory / "forge.py").write_text(FORGE)
    on_screen(terminal, "run", "--launcher", "exec", "--", "python3", "forge.py")
    for arguments in (("jobs",), ("logs",), ("stop",), ("logs", "--rank", "x\x1b[2J"), ("logs", "x\x1b[2J")):
        on_screen(terminal, *arguments)


def test_texts_of_megabytes_that_a_job_chose_are_cut(terminal):
    (terminal.directory / "long.py").write_text(LONG)
    job = terminal.phalanx("run", "--detach", "--launcher", "exec", "--", "true").stdout.strip()
    terminal.phalanx("logs", "-f", job)
    terminal.on("head", f"cd /efs/.phalanx/jobs/{job}/work && python3 long.py")
    assert "x" * 100 in terminal.phalanx("jobs").stdout
    try:
        for arguments in (("jobs",), ("logs",), ("stop",), ("status",), ("why",), ("stacks",)):
            done = terminal.phalanx(*arguments, check=False)
            assert len(done.stdout + done.stderr) < 200_000, (arguments, len(done.stdout), len(done.stderr))
    finally:
        terminal.phalanx("jobs", "--prune", "0s", "--yes", check=False)


def test_frames_that_a_job_chose_are_shown(terminal):
    (terminal.directory / "frames.py").write_text(FRAMES)
    arguments = ("--launcher", "exec", "--detach", "--", "python3", "frames.py")
    job = terminal.phalanx("run", *arguments).stdout.strip()
    terminal.wait_until_printed(job, "reads")
    shown = on_screen(terminal, "stacks", job)
    assert shown.count(r"n\x1b]0;x\x07\x1b[2J\x9b\u202e\x0a[bold]") >= 3, shown
    terminal.phalanx("stop", job)


def test_names_of_files_are_shown(terminal):
    terminal.on("head", r"mkdir /efs/d; ln -s /etc $(printf '/efs/d/\033]0;x\007'); ln -s x $(printf '/efs/d/\377')")
    assert r"left out: \x1b]0;x\x07 (" in on_screen(terminal, "get", "/efs/d", "home")
    assert r"\xff" in on_screen(terminal, "get", "/efs/d/nothing")


def test_names_in_a_repository_make_no_lines(terminal, tmp_path):
    for name in ("link", "requirements.txt"):
        (tmp_path / f"{name}\nforged").symlink_to(tmp_path)
    (tmp_path / ".gitignore").write_text("*.dat\n")
    (tmp_path / "a\nforged.dat").touch()
    (tmp_path / "r\nforged").mkdir()
    (tmp_path / "requirements.txt").write_text("-r 'r\\\nforged/none.txt'\n")
    arguments = ("run", "--directory", str(tmp_path), "--launcher", "exec", "--", "cat", "a\nforged.dat")
    on_screen(terminal, *arguments)
    (tmp_path / "requirements.txt").unlink()
    on_screen(terminal, *arguments)


def test_a_reason_in_the_table_is_shown(terminal):
    table = json.loads((terminal.state / "clusters/loud/cluster.json").read_text())["table"]
    database = api(terminal, "dynamodb")
    item = database.get_item(TableName=table, Key={"item": {"S": "roster"}})["Item"]
    missing = [{"name": "deeplearning-worker2", "reason": "[bold]why[/bold]\x1b]0;x\x07\x9b31m\nforged"}]
    roster = {**json.loads(validate.unpacked(item["roster"]["B"])), "missing": missing}
    database.put_item(TableName=table, Item={**item, "roster": {"S": json.dumps(roster)}})
    try:
        for arguments in (("nodes",), ("status",)):
            assert "[bold]why[/bold]" in on_screen(terminal, *arguments)
        assert "\nforged" not in terminal.phalanx("up", "--yes").stdout
    finally:
        database.put_item(TableName=table, Item=item)
