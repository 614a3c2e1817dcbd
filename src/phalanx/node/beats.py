"""Heartbeats: every worker sends the head a datagram each 2 s, and the head answers with the newest generation.

They are datagrams because a thousand of them cost the head almost nothing, and none blocks another. A forged one, from
inside the cluster's network, could hide a death, make a worker read the table once more, make an idle cluster look
used until its lease ends, a disk look full, or a node look as if its shared directory did not answer; it changes
nothing else.
"""

from __future__ import annotations

import functools
import socket
import threading
import time
from typing import Any

# Only root binds it: a job that held it while the agent restarts would keep the head from serving. It is not in
# /etc/services, and programs that take any port of root's take one above 511.
PORT = 273
EVERY_S = 2.0
_ANSWER_S = 1.0
# A process that did nothing for this time was paused, as that of a suspended machine.
_PAUSE_S = 6.0
UNKNOWN = b"-"
IN_USE, FULL, HUNG = b"used", b"full", b"hung"
_MOST_BYTES = len(b"used full hung")


class Ear:
    """The head's end. `heard`: address → time of the last beat (monotonic); `generation` is sent to all workers.

    A worker whose address is not in `known` gets UNKNOWN instead: its hello has not arrived. `used_at`: when a worker
    last said that somebody uses it, in seconds since the epoch. `full` and `hung`: the addresses of workers whose disk
    is full, and whose shared directory does not answer.
    """

    def __init__(self, address: str) -> None:
        self.heard: dict[str, float] = {}
        self.generation = 0
        self.used_at = 0.0
        self.full: set[str] = set()
        self.hung: set[str] = set()
        self.known: set[str] = set()
        self._senders: dict[str, Any] = {}
        self._awake_at, self._waking = time.monotonic(), threading.Lock()
        self._socket = socket.socket(type=socket.SOCK_DGRAM)
        self._socket.settimeout(EVERY_S)
        self._socket.bind((address, PORT))
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while True:
            self.now()
            self.answer()

    def now(self) -> float:
        """Return the time. A pause of this process is no silence of the nodes: their beats count as later by as much.

        Its thread asks again and again. Hence a head that waits for an answer of AWS does not count as paused.
        """
        with self._waking:
            now = time.monotonic()
            away = now - self._awake_at
            if away > _PAUSE_S:
                self.heard.update({address: min(now, at + away) for address, at in list(self.heard.items())})
            self._awake_at = now
        return now

    def answer(self) -> None:
        """Wait for a beat, and answer it."""
        try:
            beat, sender = self._socket.recvfrom(_MOST_BYTES)
            said = beat.split()
            if IN_USE in said:
                self.used_at = time.time()
            for word, named in ((FULL, self.full), (HUNG, self.hung)):
                (named.add if word in said else named.discard)(sender[0])
            self.heard[sender[0]] = time.monotonic()
            self._senders[sender[0]] = sender
            self._socket.sendto(b"%d" % self.generation if sender[0] in self.known else UNKNOWN, sender)
        except OSError:
            pass  # none came, or the sender is already out of reach

    def announce(self, generation: int) -> None:
        """Send a new generation to all workers, so that hundreds of them need not poll the table."""
        self.generation = generation
        for sender in list(self._senders.values()):
            try:
                self._socket.sendto(b"%d" % generation, sender)
            except OSError:
                pass  # it gets the answer to its next beat, or is gone


class Beat:
    """A worker's end: send beats to the address `head`; set `changed` while it is silent or sends another generation.

    `unanswered` counts the beats since the last answer; `heard`: the last beat was answered; `unknown`: by a head that
    has not received this node's hello; `announced`: the generation that the head sent last; `content`: what is sent.
    """

    def __init__(self) -> None:
        self.head, self.content = "", b""
        self.unanswered = 0
        self.heard = self.unknown = False
        self.generation = self.announced = 0
        self.changed = threading.Event()
        self._socket = socket.socket(type=socket.SOCK_DGRAM)
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while True:
            self._socket.settimeout(_ANSWER_S)
            self.once()
            self.listen(EVERY_S)

    def aim(self, head: str) -> None:
        """Send beats to this address, the first at once if it is new, so that the head can send its generation."""
        if head and head != self.head:
            self.head = head
            self.unanswered, self.heard = 0, False
            self._send()

    def once(self) -> None:
        """Send a beat and wait for the answer; set `changed` if there is none."""
        self._send()
        self.unanswered += 1
        self.heard = self._hear()
        if not self.heard:
            self.changed.set()

    def listen(self, seconds: float) -> None:
        """Receive what the head sends by itself until the next beat."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._socket.settimeout(left)
            if not self._hear():
                time.sleep(max(0, end - time.monotonic()))

    def _send(self) -> None:
        try:
            self._socket.sendto(self.content, (self.head, PORT))
        except OSError:
            pass  # it is gone, or another node is the head by now

    def _hear(self) -> bool:
        """Receive a datagram; return whether one came in time."""
        try:
            answer = self._socket.recv(9)
        except OSError:
            return False
        unknown, self.unknown = self.unknown, answer == UNKNOWN
        if self.unknown and not unknown:
            self.changed.set()
        if answer.isdigit():
            self.announced = int(answer)
            if self.announced != self.generation:
                self.changed.set()
        self.unanswered, self.heard = 0, True
        return True


# One of each per process, however often its agent restarts.
ear = functools.lru_cache(Ear)
beat = functools.lru_cache(Beat)
