"""`phalanx check net` with a node that does not measure: rank 0 ends soon, takes little memory, and names the node."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from ports import free_port

HELLO = {"rank": 1, "port": 9, "efa": False}
FIRST = {
    "a rank that is none": {**HELLO, "rank": "x"},
    "a rank of another": {**HELLO, "rank": 0},
    "a rank beyond all": {**HELLO, "rank": 10**18},
    "a port that is none": {**HELLO, "port": 1 << 20},
    "no object": [1],
}
LATER = {
    "no text": bytes(range(256)),
    "nested deep": b"[" * 60_000,
    "a number that is none": b'{"bit_s": 1e999, "round_trip_s": NaN}',
    "no-end": b"x" * (64 << 20),
}


@contextmanager
def measuring(port: int) -> Iterator[subprocess.Popen[str]]:
    env = {**os.environ, "RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    argv = [sys.executable, "-m", "phalanx.netcheck"]
    with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def connected(port: int, process: subprocess.Popen[str]) -> socket.socket:
    """Connect from an address of its own, as another node does."""
    while process.poll() is None:
        with suppress(OSError):
            return socket.create_connection(("127.0.0.1", port), 10, ("127.0.0.2", 0))
    raise AssertionError(process.communicate())


def assert_node_is_named(process: subprocess.Popen[str]) -> None:
    out, error = process.communicate(timeout=20)
    assert process.returncode == 1 and "phalanx-net" not in out
    assert error.startswith("the node at 127.0.0.2 gives no valid answer: ") and len(error) < 300, error
    assert "Traceback" not in error


@pytest.mark.parametrize("said", FIRST.values(), ids=FIRST)
def test_a_node_that_says_nothing_valid_at_first_is_named(said):
    port = free_port()
    with measuring(port) as process, connected(port, process) as node:
        node.sendall(json.dumps(said).encode() + b"\n")
        assert_node_is_named(process)


@pytest.mark.parametrize("answer", LATER.values(), ids=LATER)
def test_a_node_whose_answer_is_none_is_named(answer):
    port = free_port()
    with measuring(port) as process, connected(port, process) as node:
        node.sendall(json.dumps(HELLO).encode() + b"\n")
        assert json.loads(node.makefile().readline())["do"] == "link"
        with suppress(OSError):
            node.sendall(answer + b"\n")
        assert_node_is_named(process)
