"""Ports of this machine for programs that can't be given a socket, only a number."""

import random
import socket

# Neither the kernel's own choice (from 32768) nor that of jobs (from 20000), so that nobody takes one by chance.
_NUMBERS = range(12_000, 20_000)
# pytest-randomly gives every process of the tests the same numbers.
_chance = random.SystemRandom()


def free_port(adjacent: int = 1) -> int:
    """Return the first of so many adjacent TCP ports that nothing uses."""
    while True:
        first = _chance.choice(_NUMBERS)
        if all(_is_free(port) for port in range(first, first + adjacent)):
            return first


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
