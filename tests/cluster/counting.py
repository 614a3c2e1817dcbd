"""A stand-in for a training without torch's import: ranks make steps together and save every fifth one.

`python counting.py DIRECTORY`, started by an engine with torch's variables, runs until DIRECTORY/enough exists.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path

KEPT_EVERY = 5
_STEP_S = 0.1
_MEET_WITHIN_S = 240.0
_GO_ON, _END = b"+", b"."


def main() -> None:
    directory, is_first = Path(sys.argv[1]), os.environ["RANK"] == "0"
    directory.mkdir(exist_ok=True)
    kept = directory / "checkpoint"
    step = int(kept.read_text()) if kept.exists() else 0
    peers = meet(is_first, int(os.environ["WORLD_SIZE"]))
    if is_first:
        print(f"from {step} with {len(peers) + 1}", flush=True)
    while together(peers, is_first, _END if (directory / "enough").exists() else _GO_ON):
        step += 1
        if is_first:
            keep(kept, step)
            print(f"step {step}", flush=True)
            time.sleep(_STEP_S)


def meet(is_first: bool, size: int) -> list[socket.socket]:
    """Connect rank 0 with each other rank."""
    port = int(os.environ["MASTER_PORT"])
    if is_first:
        with socket.create_server(("", port)) as server:
            server.settimeout(_MEET_WITHIN_S)
            return [server.accept()[0] for _ in range(size - 1)]
    deadline, connection = time.monotonic() + _MEET_WITHIN_S, socket.socket()
    while connection.connect_ex((os.environ["MASTER_ADDR"], port)):
        assert time.monotonic() < deadline
        connection = socket.socket()
        time.sleep(0.1)
    return [connection]


def together(peers: list[socket.socket], is_first: bool, word: bytes) -> bool:
    """Make one step together: rank 0 hears from every rank and answers whether to continue."""
    if is_first:
        for peer in peers:
            hear(peer)
        for peer in peers:
            peer.sendall(word)
        return word == _GO_ON
    peers[0].sendall(word)
    return hear(peers[0]) == _GO_ON


def hear(peer: socket.socket) -> bytes:
    word = peer.recv(1)
    if not word:
        sys.exit("a peer is gone")
    return word


def keep(kept: Path, step: int) -> None:
    if step % KEPT_EVERY == 0:
        beside = kept.with_suffix(".partial")
        beside.write_text(str(step))
        beside.replace(kept)


if __name__ == "__main__":
    main()
