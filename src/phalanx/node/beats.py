"""Beats: a datagram from every worker to the head each 2 s, and its answer, the newest generation.

Datagrams, because a thousand of them cost the head nothing and none can block another. A forged one, from inside the
cluster's own network, could hide a death or make a worker read the table once more; it changes nothing else.
"""

from __future__ import annotations

import functools
import socket
import threading
import time

PORT = 7312
EVERY_S = 2.0
_ANSWER_S = 1.0


class Ear:
    """The head's end. `heard`: address → when (monotonic clock); `generation` is what everybody is told."""

    def __init__(self, address: str) -> None:
        self.heard: dict[str, float] = {}
        self.generation = 0
        self._socket = socket.socket(type=socket.SOCK_DGRAM)
        self._socket.bind((address, PORT))
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while True:
            self.answer()

    def answer(self) -> None:
        """Wait for one beat, and answer it."""
        try:
            sender = self._socket.recvfrom(9)[1]
            self.heard[sender[0]] = time.monotonic()
            self._socket.sendto(b"%d" % self.generation, sender)
        except OSError:
            pass  # whoever it was is out of reach already


class Beat:
    """A worker's end: beats to the address `head`; sets `news` while that is silent or tells another generation."""

    def __init__(self) -> None:
        self.head = ""
        self.generation = 0
        self.news = threading.Event()
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        with socket.socket(type=socket.SOCK_DGRAM) as ours:
            ours.settimeout(_ANSWER_S)
            while True:
                self.once(ours)
                time.sleep(EVERY_S)

    def once(self, ours: socket.socket) -> None:
        """One beat, and its answer."""
        answer = b""
        try:
            ours.sendto(answer, (self.head, PORT))
            answer = ours.recv(9)
        except OSError:
            pass  # it is not there, or another is head by now
        if answer != b"%d" % self.generation:
            self.news.set()


# One each for a process, however often its agent begins again.
ear = functools.lru_cache(Ear)
beat = functools.lru_cache(Beat)
