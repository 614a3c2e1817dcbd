"""What mpiexec calls in ssh's place: the head's runner starts the engine's daemon on a node; this ends as that ends."""

from __future__ import annotations

import json
import os
import socket
from typing import TYPE_CHECKING

from phalanx.node.runner.system import RUNNER_SOCKET

if TYPE_CHECKING:
    from typing import NoReturn, Sequence


def ask(arguments: Sequence[str]) -> NoReturn:
    """`[options] NODE COMMAND…` as ssh takes it; COMMAND goes to a shell there."""
    words = list(arguments)
    while words and words[0].startswith("-"):
        words.pop(0)
    runner = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    runner.connect("\0" + os.environ[RUNNER_SOCKET])
    answer_read, answer_write = os.pipe()
    request = json.dumps({"node": words[0], "command": " ".join(words[1:])})
    socket.send_fds(runner, [request.encode()], [answer_write])
    os.close(answer_write)
    # There is one of these per node for as long as the job runs: a shell that waits takes a tenth of the memory.
    os.dup2(answer_read, 0)
    os.execv("/bin/sh", ["sh", "-c", "read code; exit ${code:-255}"])
