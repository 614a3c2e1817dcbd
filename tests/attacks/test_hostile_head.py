"""A hostile head: nothing that it sends becomes a command, a file or a traceback on the user's machine."""

from __future__ import annotations

import json
import shlex
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from local_clouds import api
from terminals import Terminal, a_cluster

from phalanx.node import validate

pytestmark = pytest.mark.cluster

SPEC = "name: hostile\ncloud: local\nnodes: 2\nmin: 2\ntype: c5.large\nshared: /efs\nkeep: no\n"
FORGE = """
import json, os, sys
roster = json.load(open("/opt/phalanx/roster.json"))
next(node for node in roster["nodes"] if not node["head"]).update(json.loads(sys.argv[1]))
open("/tmp/forged.json", "w").write(json.dumps(roster))
shadow = 'cat() { case "$*" in *roster.json) command cat /tmp/forged.json;; *) command cat "$@";; esac; }'
open(os.path.expanduser("~phalanx/.bashrc"), "w").write(shadow)
"""
# What of an agent a plain `ssh` leaves on the head.
LENT = 'ssh -F "$1" hostile "echo \\$SSH_AUTH_SOCK"'
ANSWERS = {
    "no object": b"{}\n[]\nnull\n",
    "other types": b'{"id": 1, "name": [], "state": {}, "command": 5, "tail": 5, "nodes": "x"}\n',
    "an id that is a path": b'{"format": 1, "id": "../../../x", "name": "", "launcher": "exec", "command": ["x"], '
    b'"state": "running", "submitted_at": 1, "started_at": 1, "ended_at": null, "processes": 1, "exit_code": null, '
    b'"message": "", "tail": [], "nodes": []}\n',
    "deep": b'{"id": ' + b"[" * 100_000 + b"\n",
    "numbers without end": b'{"id": 1e999, "x": ' + b"9" * 10_000 + b"}\n",
    "no text": bytes(range(256)) * 20 + b"\n",
}
HEADER = struct.Struct("<BBHIQQ")
FRAMES = {
    "of an unknown process": HEADER.pack(2, 1, 7, 1, 0, 0) + b"x",
    "a state that is none": HEADER.pack(4, 0, 0, 2, 0, 0) + b"[]",
    "a process that is none": HEADER.pack(1, 0, 0, 4, 0, 0) + b"null",
    "of four gigabytes": HEADER.pack(2, 1, 0, 0xFFFFFFFF, 0, 0) + b"x",
}


@pytest.fixture(scope="module")
def terminal() -> Iterator[Terminal]:
    with a_cluster(SPEC) as terminal:
        # Where no job ever was, or no environment, nothing is asked.
        terminal.phalanx("run", "--launcher", "exec", "-n", "1", "--", "true")
        terminal.on("head", "mkdir -p /efs/.phalanx/environments")
        yield terminal


@pytest.fixture
def owned(terminal: Terminal) -> Path:
    """A file here that no node may create. (ssh converts host names to lower case.)"""
    path = terminal.state.parent / "owned"
    path.unlink(missing_ok=True)
    return path


@pytest.fixture
def head(terminal: Terminal) -> Iterator[Terminal]:
    """The head; its job user's .bashrc is restored afterwards."""
    keep = "/home/phalanx/.bashrc /home/phalanx/kept"
    terminal.phalanx("ssh", "--admin", "--", f"sudo cp -p {keep}")
    yield terminal
    terminal.phalanx("ssh", "--admin", "--", f"sudo cp -p {' '.join(keep.split()[::-1])}")


def as_root(terminal: Terminal, program: str, *arguments: str) -> None:
    """Run Python on the head as root, unaffected by what was done to its job user."""
    terminal.phalanx("ssh", "--admin", "--", shlex.join(["sudo", "python3", "-I", "-c", program, *arguments]))


def answer_all_with(terminal: Terminal, content: bytes) -> None:
    """Make the job user's shell print this instead of running any command by `exec`, as phalanx does."""
    write = "import sys; open(sys.argv[1], 'wb').write(bytes.fromhex(sys.argv[2]))"
    packed = f"import zlib, sys; open('/tmp/answer', 'wb').write(zlib.decompress(bytes.fromhex({packing(content)!r})))"
    as_root(terminal, packed)
    as_root(terminal, write, "/home/phalanx/.bashrc", b"exec() { command cat /tmp/answer; }\n".hex())


def packing(content: bytes) -> str:
    import zlib

    return zlib.compress(content).hex()


def test_a_forged_roster_file_gives_no_command_here(head, owned):
    """Root on the head, or a job by its .bashrc, can shadow `cat`; neither must decide where ssh connects to."""
    forged = {"instance_id": f"x$(echo>{owned})", "address": f"x$(echo>{owned})"}
    as_root(head, FORGE, json.dumps(forged))
    assert head.on("worker2", "hostname -I").split()[0].startswith("10.")
    assert head.phalanx("exec", "--", "hostname").stderr.count(": ok") == 2
    assert not owned.exists()


@pytest.mark.parametrize(
    "forged",
    [
        {"instance_id": "x$(echo>{owned})"},
        {"name": "-oProxyCommand=echo>{owned}"},
        {"name": "../../owned"},
        {"address": "10.0.0.1 -oProxyCommand=echo>{owned}"},
        {"hostname": "x\n@cert-authority * ssh-ed25519 AAAA"},
        {"name": "deeplearning-worker2\x1b]0;title\x07"},
        {"slots": "$(echo>{owned})"},
        {"slots": 10**30},
    ],
    ids=lambda forged: next(iter(forged)),
)
def test_a_forged_roster_in_the_table_is_refused(terminal, owned, forged):
    """Root on the head has the head's role and can write the table. No command accepts an invalid roster."""
    table, table_name = api(terminal, "dynamodb"), record(terminal)["table"]
    item = table.get_item(TableName=table_name, Key={"item": {"S": "roster"}})["Item"]
    roster = json.loads(validate.unpacked(item["roster"]["B"]))
    values = {key: value.format(owned=owned) if isinstance(value, str) else value for key, value in forged.items()}
    next(node for node in roster["nodes"] if not node["head"]).update(values)
    table.put_item(TableName=table_name, Item={**item, "roster": {"S": json.dumps(roster)}})
    try:
        for arguments in COMMANDS_WITH_A_ROSTER:
            done = terminal.phalanx(*arguments, check=False)
            assert is_refused(done.stderr), (arguments, done)
            assert done.returncode == 3
    finally:
        table.put_item(TableName=table_name, Item=item)
    assert not owned.exists()
    assert not list(terminal.directory.rglob("*.sh"))


COMMANDS_WITH_AN_ANSWER = (
    *(("jobs",), ("logs",), ("stop", "x"), ("get", "x"), ("get", "x/*"), ("recipes", "--json"), ("status",)),
    *(("top",), ("top", "--json"), ("stacks",), ("stacks", "--json"), ("why",), ("jobs", "--prune", "0s", "--yes")),
    *(
        ("plot",),
        ("put", "phalanx.yaml"),
        ("notebook",),
        ("tensorboard",),
        ("check", "net"),
        ("data", "fetch", "mnist"),
    ),
)
COMMANDS_WITH_A_ROSTER = (
    ("nodes",),
    ("exec", "--", "true"),
    ("run", "--dry-run", "--", "true"),
    ("tf-scripts", "--trainer_script_dir", "scripts", "--training_script", "/efs/x.py"),
)


def record(terminal: Terminal) -> dict[str, Any]:
    return json.loads((terminal.state / "clusters/hostile/cluster.json").read_text())


def is_refused(shown: str) -> bool:
    """Whether this is a message of phalanx rather than a crash, without an escape sequence."""
    return shown.startswith("error: ") and "This is an unexpected error" not in shown and "\x1b" not in shown


def test_a_command_is_never_an_option_of_ssh(terminal, owned):
    """What follows `--` is for the node's shell, whatever it begins with."""
    done = terminal.phalanx("ssh", "--", f"-oProxyCommand=echo>{owned}", check=False)
    assert done.returncode != 0
    assert not owned.exists()


def test_plain_ssh_lends_the_head_neither_an_agent_nor_a_display(terminal, tmp_path):
    """A job there is the user who logs in: it could log in elsewhere by the agent, and read what is typed here."""
    (tmp_path / "config").write_text(
        terminal.phalanx("ssh-config").stdout + "Host *\nForwardAgent yes\nForwardX11 yes\n"
    )
    for name in ("hostile", "hostile-worker2"):
        done = subprocess.run(["ssh", "-G", "-F", str(tmp_path / "config"), name], capture_output=True, text=True)
        assert {"forwardagent no", "forwardx11 no"} <= set(done.stdout.splitlines())
    agent = subprocess.run(["ssh-agent", "sh", "-c", LENT, "sh", tmp_path / "config"], capture_output=True, text=True)
    assert agent.stdout == "\n", agent


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_an_invalid_answer_ends_no_command_by_accident(head, answer):
    answer_all_with(head, answer)
    for arguments in COMMANDS_WITH_AN_ANSWER:
        done = head.phalanx(*arguments, check=False, timeout_s=600)
        assert "This is an unexpected error" not in done.stderr, (arguments, done.stderr[-500:])
        assert "../../../x" not in done.stdout


def test_an_answer_without_an_end_does_not_fill_this_machines_memory(head):
    as_root(head, "open('/home/phalanx/.bashrc', 'w').write('exec() { command head -c 200M /dev/zero; }\\n')")
    done = head.phalanx("jobs", check=False, timeout_s=600)
    assert "more than 64 MiB" in done.stderr
    assert is_refused(done.stderr)


@pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES)
def test_invalid_frames_end_a_run_with_a_message(head, tmp_path, frame):
    answer_all_with(
        head, b'{"here": true}\n{"plan": {"launcher": "mpi", "ranks": 1, "nodes": 1}}\n\0phalanx-follow-1\n' + frame
    )
    done = head.phalanx("run", "-q", "--directory", str(tmp_path), "--", "true", check=False, timeout_s=600)
    assert is_refused(done.stderr), done
    assert done.returncode in (6, 7)  # it may have ended before all was sent
