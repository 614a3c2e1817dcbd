"""Crowd a node's agent where it serves credentials, as a job could: `crowd_agent.py FILE halves|strangers`.

It prints "holding" once it has what it can get, and holds that while FILE exists.
"""

import contextlib
import socket
import sys
import time
from pathlib import Path

AGENT, SOCKET = ("127.0.0.1", 331), "/run/phalanx.sock"
FILE, HOW = Path(sys.argv[1]), sys.argv[2]
CONNECTIONS = 200
EVERY_S = 0.5
HEAD = b"GET / HTTP/1.1\r\nAuthorization: "


def connect(family, address):
    """Connect without waiting for a queue that is full."""
    made = socket.socket(family)
    made.settimeout(0.05)
    with contextlib.suppress(OSError):
        made.connect(address)
    made.settimeout(0)
    return made


def is_sent(connection, content):
    with contextlib.suppress(OSError):
        return bool(connection.send(content))
    return False


def halves(held, at):
    """Send requests a byte at a time, so that no single read takes long, and again where they were given up."""
    for number in range(CONNECTIONS):
        if number not in held or not is_sent(held[number], HEAD[at : at + 1] or b"x"):
            held[number] = connect(socket.AF_INET, AGENT)


def strangers(held, _):
    """Register jobs that do not exist."""
    for number in range(CONNECTIONS):
        if number not in held:
            held[number] = connect(socket.AF_UNIX, SOCKET)
            is_sent(held[number], b"token%d job" % number)


held, at = {}, 0
while FILE.exists():
    {"halves": halves, "strangers": strangers}[HOW](held, at)
    if at == 0:
        print("holding", flush=True)
    at += 1
    time.sleep(EVERY_S)
