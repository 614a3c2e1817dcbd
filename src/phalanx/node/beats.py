"""Beats: a datagram from every worker to the head each 2 s, and its answer, the newest generation; so are news told.

Datagrams, because a thousand of them cost the head nothing and none can block another. A forged one, from inside the
cluster's own network, could hide a death or make a worker read the table once more; it changes nothing else.
"""

from __future__ import annotations

import functools
import socket
import threading
import time
from typing import Any

PORT = 7312
EVERY_S = 2.0
_ANSWER_S = 1.0


class Ear:
    """The head's end. `heard`: address → when (monotonic clock); `generation` is what everybody is told."""

    def __init__(self, address: str) -> None:
        self.heard: dict[str, float] = {}
        self.generation = 0
        self._senders: dict[str, Any] = {}
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
            self._senders[sender[0]] = sender
            self._socket.sendto(b"%d" % self.generation, sender)
        except OSError:
            pass  # whoever it was is out of reach already

    def tell(self, generation: int) -> None:
        """Tell everybody at once: so hundreds of workers need not read the table all the time."""
        self.generation = generation
        for sender in list(self._senders.values()):
            try:
                self._socket.sendto(b"%d" % generation, sender)
            except OSError:
                pass  # it hears with its next beat, or is gone


class Beat:
    """A worker's end: beats to the address `head`; sets `news` while that is silent or tells another generation.

    `unanswered` counts the last beats that nothing was heard after; `heard`: the last one was answered.
    """

    def __init__(self) -> None:
        self.head = ""
        self.unanswered = 0
        self.heard = False
        self.generation = 0
        self.news = threading.Event()
        self._socket = socket.socket(type=socket.SOCK_DGRAM)
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while True:
            self._socket.settimeout(_ANSWER_S)
            self.once()
            self.listen(EVERY_S)

    def aim(self, head: str) -> None:
        """Beat to this address; at once, when it is another, so that the head can tell what is new."""
        if head and head != self.head:
            self.head = head
            self.unanswered, self.heard = 0, False
            self._send()

    def once(self) -> None:
        """One beat, and its answer; a head that is silent is news, too."""
        self._send()
        self.unanswered += 1
        self.heard = self._hear()
        if not self.heard:
            self.news.set()

    def listen(self, seconds: float) -> None:
        """What the head tells by itself until the next beat."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._socket.settimeout(left)
            if not self._hear():
                time.sleep(max(0, end - time.monotonic()))

    def _send(self) -> None:
        try:
            self._socket.sendto(b"", (self.head, PORT))
        except OSError:
            pass  # it is not there, or another is head by now

    def _hear(self) -> bool:
        """Whether anything was heard in time."""
        try:
            if self._socket.recv(9) != b"%d" % self.generation:
                self.news.set()
        except OSError:
            return False
        self.unanswered, self.heard = 0, True
        return True


# One each for a process, however often its agent begins again.
ear = functools.lru_cache(Ear)
beat = functools.lru_cache(Beat)
