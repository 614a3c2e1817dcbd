"""What a training does, without torch's import: ranks that go step by step together, and keep every fifth step.

`python counting.py DIRECTORY`, started by an engine with torch's variables. It ends once DIRECTORY/enough is there.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path

KEPT_EVERY = 5
_STEP_S = 0.1
_MEET_WITHIN_S = 60.0
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
    """Connections: rank 0 has one to each other, the others have one to it."""
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
    """A step of all: rank 0 hears of each that it is there, and says whether they go on."""
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
