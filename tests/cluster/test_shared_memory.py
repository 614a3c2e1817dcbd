"""A job's shared memory is its own, the same for all its ranks on a node, and gone however it ends."""

from __future__ import annotations

import re
import shlex
import time
from pathlib import Path

import pytest
from terminals import Terminal

pytestmark = pytest.mark.cluster

# A rank that leaves each kind, and has closed all of it; the newest message of each kind that others left, too.
LEAVE = """
import ctypes, os, sys, time
name = sys.argv[1]
libc = ctypes.CDLL(None, use_errno=True)
open(f"/dev/shm/{name}", "wb").write(bytes(4096))
libc.shmget(0, 4096, 0o1600), libc.semget(0, 2, 0o1600), libc.msgget(0, 0o1600)
libc.mq_open(f"/{name}".encode(), os.O_CREAT | os.O_RDWR, 0o600, None)
print("ready", flush=True)
time.sleep(float(sys.argv[2]))
"""
COUNT = """
import os
lines = sum(len(open(f"/proc/sysvipc/{kind}").readlines()) - 1 for kind in ("shm", "sem", "msg"))
print("there:", *sorted(os.listdir("/dev/shm")), "and", lines, flush=True)
"""
ON_NODE = "ls -A /dev/shm; cat /proc/sysvipc/shm /proc/sysvipc/sem /proc/sysvipc/msg | grep -vc uid; true"
SOON_S = 30


def start(cluster: Terminal, code: Path, *arguments: str) -> str:
    (code / "leave.py").write_text(LEAVE)
    (code / "count.py").write_text(COUNT)
    job = ("run", "--detach", "--directory", str(code), "--launcher", "exec", *arguments)
    job_id = cluster.phalanx(*job).stdout.strip()
    cluster.wait_until_printed(job_id, "ready")
    return job_id


def left(cluster: Terminal, but: int = 0) -> list[str]:
    """Return what is in memory on the head, as soon as that is not more than `but` entries."""
    end = time.monotonic() + SOON_S
    while True:
        found = cluster.on("head", ON_NODE).split()
        if len(found) <= but or time.monotonic() > end:
            return found


def test_what_a_stopped_job_has_left_in_memory_is_gone_while_another_job_keeps_its_own(cluster, tmp_path):
    before = left(cluster, 99)
    wait = "python3 leave.py kept 0; until [ -e /efs/stopped ]; do sleep 0.1; done; python3 count.py; sleep 4711"
    kept = start(cluster, tmp_path, "-n", "1", "--", "sh", "-c", wait)
    job = start(cluster, tmp_path, "-n", "1", "--", "python3", "leave.py", "left", "4711")
    look = ("run", "--directory", str(tmp_path), "--launcher", "exec", "-n", "1", "--", "python3", "count.py")
    assert "there: and 0" in cluster.phalanx(*look).stdout, "one job sees another's"
    cluster.phalanx("stop", job)
    assert len(left(cluster, len(before) + 1)) == len(before) + 1
    cluster.on("head", "touch /efs/stopped")
    cluster.wait_until_printed(kept, "there: kept and 3")
    cluster.phalanx("stop", kept)
    assert left(cluster, len(before)) == before


def test_ranks_of_a_node_share_memory_and_killed_starters_leave_none(cluster, tmp_path):
    before = left(cluster, 99)
    share = "[ $RANK = 0 ] && python3 leave.py left 0; while [ ! -e /dev/shm/left ]; do sleep 0.1; done; "
    job = start(cluster, tmp_path, "-n", "2", "-N", "2", "--", "sh", "-c", share + "python3 count.py; sleep 4711")
    cluster.wait_until_printed(job, "there: left and 3", times=2)
    cluster.on("head", f"pkill -KILL -f {shlex.quote(f'starter {job}')}", check=False)
    cluster.phalanx("logs", "-f", job, check=False)
    assert left(cluster, len(before)) == before


# Asks the agent as a starter does: for a shell, and for nonsense.
ASK = """
import json, os, socket
def ask(message, count=4):
    agent = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    agent.settimeout(20)
    agent.connect("/run/phalanx-memory.sock")
    ours, others = socket.socketpair()
    socket.send_fds(agent, [message], [0, 1, 2, others.fileno()][:count])
    others.close()
    answer = agent.recv(9)
    agent.send(b"go") if answer else 0
    ours.recv(1)
    print("answer", answer, flush=True)
script = "echo shell: $(id -u) $(id -G) $(sed -n 's/^CapEff:.//p' /proc/self/status) $(ulimit -Hl)"
request = json.dumps({"argv": ["/bin/sh", "-c", script], "env": {"PATH": "/usr/bin:/bin"}, "cwd": "/"}).encode()
os.system(script.replace("shell", "own"))
ask(request)
for message in (b"", b"x", b"[]", b"{}", b'{"argv": 1, "env": 2, "cwd": 3}', request[:-1]):
    ask(message)
ask(request, 3)
"""


def test_who_asks_the_agent_for_memory_gets_no_rights_by_it_and_a_job_not_even_a_process(cluster, tmp_path):
    before = left(cluster, 99)
    (tmp_path / "ask.py").write_text(ASK)
    job = ("run", "--directory", str(tmp_path), "--launcher", "exec", "-n", "1", "--", "python3", "ask.py")
    shown = cluster.phalanx(*job).stdout
    assert shown.count("answer b''") == 8 and "shell" not in shown, shown
    cluster.phalanx("put", str(tmp_path / "ask.py"), "/efs/ask.py")
    shown = cluster.on("head", "python3 /efs/ask.py")
    own, shell = (re.findall(f"{name}: (.*)", shown) for name in ("own", "shell"))
    assert own == shell and shown.count("answer") == 8, shown
    assert left(cluster, len(before)) == before
