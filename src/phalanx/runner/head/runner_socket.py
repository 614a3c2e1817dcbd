"""The runner's socket on the head: followers wait on it for updates, engines' agents request daemons on nodes.

Clients also ask it to stop the job, or what its ranks do at this moment.
"""

from __future__ import annotations

import json
import os
import socket
import time
from contextlib import suppress

from phalanx.node.validate import Invalid, fields, parse
from phalanx.runner.files.schema import by_name
from phalanx.runner.files.schema import text as text_of
from phalanx.runner.loop import Loop
from phalanx.runner.starter.answers import REFUSED, answer
from phalanx.runner.system import peer_is_us

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterator, List, Sequence

    from phalanx.runner.files.job_status import JobStatus

    # pipe for the answer (the exit code as a line), node, command for a shell
    OnRequest = Callable[[int, str, str], None]
    # the starter's connection, which keeps it alive; its pipes to and from; its description of itself
    OnAttend = Callable[[socket.socket, Sequence[int], Dict[str, Any]], None]


_FOLLOW = b"follow"
STOP_WISH = b"stop"
LOOK, LOAD = b"look", b"load"
LABEL = b"label\0"
_UPDATE = b"!"
MOST_BYTES = 1 << 16
"""The largest message: it must fit into a socket's buffer."""
_TAKEN_WITHIN_S = 1.0
ATTEND = b"attend\0"


def socket_name(job_id: str) -> str:
    """Return the name of the abstract unix socket of a job's runner, which leaves no file when it is killed."""
    return f"phalanx-{job_id}"


def open_listener(job_id: str) -> socket.socket:
    """Bind the socket, before the runner is forked, so that the first follower finds it.

    Raises OSError when the job runs already.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind("\0" + socket_name(job_id))
    listener.listen(1024)
    return listener


def connect_follower(job_id: str, wish: bytes = _FOLLOW) -> socket.socket | None:
    """Return a connection that receives one byte with each update, and ends with the runner. None: no runner."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect("\0" + socket_name(job_id))
        # Abstract names have no owner: another account may have taken it.
        if peer_is_us(connection):
            connection.send(wish)
            return connection
    except OSError:
        pass  # there is no runner
    connection.close()
    return None


def request_stop(job_id: str, timeout_s: float) -> Iterator[bytes]:
    """Ask a job's runner, whose pid is unknown, to stop; end when it has ended, or after timeout_s.

    Returns the parts of the job's final state as JSON, which comes before it is written.
    """
    return (part for part in answers(job_id, STOP_WISH, timeout_s) if part != _UPDATE)


def answers(job_id: str, wish: bytes, timeout_s: float) -> Iterator[bytes]:
    """Yield what a job's runner sends in answer to a wish until it closes the connection, or for this long."""
    runner = connect_follower(job_id, wish)
    if runner is None:
        return
    deadline = time.monotonic() + timeout_s
    with runner, suppress(OSError):
        while (left_s := deadline - time.monotonic()) > 0:
            runner.settimeout(left_s)
            part = runner.recv(MOST_BYTES)
            if not part:
                return
            yield part


def label_in(text: bytes) -> Dict[str, Any]:
    """Return a job's name and tags, as its state has them. Raises Invalid."""
    return fields({"name": text_of, "tags": by_name(text_of)}, parse(text))


def send_text(client: socket.socket, text: bytes) -> bool:
    """Send a client a line of any length, in messages that fit its socket; return False if it does not take it."""
    try:
        client.settimeout(_TAKEN_WITHIN_S)
        for start in range(0, len(text), MOST_BYTES):
            client.send(text[start : start + MOST_BYTES])
        client.setblocking(True)
    except OSError:
        return False  # it may have left
    return True


class RunnerSocket:
    """Accepts followers, agents, and starters that a batch scheduler started.

    `request` is called for each agent, `attend` for each starter, `look` for each client that asks what the ranks do;
    the present attempt sets them. `load` answers clients that want to know the nodes' load, `stop` is called when one
    asks to stop the job, and `label` when one gives it another name or other tags.
    """

    def __init__(self, loop: Loop, listener: socket.socket) -> None:
        self.request: OnRequest = _refuse
        self.attend: OnAttend = turn_away
        self.look: Callable[[socket.socket], None] = lambda client: client.close()
        self.load: Callable[[socket.socket], None] = lambda client: client.close()
        self.stop: Callable[[], None] = lambda: None
        self.label: Callable[[Dict[str, Any]], None] = lambda _label: None
        self._loop = loop
        self._listener = listener
        self._followers: List[socket.socket] = []
        self._stoppers: List[socket.socket] = []
        loop.watch(listener.fileno(), self._accept)

    def notify(self) -> None:
        """Wake every follower, except those that have not read the last update yet."""
        for follower in list(self._followers):
            try:
                follower.send(_UPDATE, socket.MSG_DONTWAIT)
            except BlockingIOError:
                pass
            except OSError:
                self._followers.remove(follower)
                follower.close()

    def tell_end(self, status: JobStatus) -> None:
        """Send the final status to those who asked for the stop: the shared directory may not take it for minutes."""
        text = json.dumps(status.to_record()).encode() + b"\n"
        for stopper in self._stoppers:
            send_text(stopper, text)

    def close(self) -> None:
        """Accept no more connections, and close those of followers."""
        self._loop.forget(self._listener.fileno())
        self._listener.close()
        for follower in self._followers:
            follower.close()

    def _accept(self, _: int) -> None:
        connection, _ = self._listener.accept()
        if peer_is_us(connection):
            self._loop.watch(connection.fileno(), lambda _: self._hear(connection))
        else:
            connection.close()

    def _hear(self, connection: socket.socket) -> None:
        self._loop.forget(connection.fileno())
        try:
            message, fds, _, _ = socket.recv_fds(connection, 1 << 20, 2)
        except OSError:
            message, fds = b"", []
        if message == STOP_WISH:
            self._stoppers.append(connection)
            self.stop()
        if message in (_FOLLOW, STOP_WISH):
            self._followers.append(connection)
            self.notify()
            return
        if message in (LOOK, LOAD):
            (self.look if message == LOOK else self.load)(connection)
            return
        if message.startswith(LABEL):
            with suppress(Invalid):
                self.label(label_in(message[len(LABEL) :]))
                send_text(connection, b"done\n")
        if message.startswith(ATTEND) and len(fds) == 2:
            self.attend(connection, fds, json.loads(message[len(ATTEND) :]))
            return
        connection.close()
        if message and fds:
            node, _, command = os.fsdecode(message).partition("\0")
            self.request(fds[0], node, command)


def turn_away(connection: socket.socket, fds: Sequence[int], _hello: Dict[str, Any]) -> None:
    """Reject a starter that no attempt waits for: it ends at once."""
    connection.close()
    for fd in fds:
        os.close(fd)


def _refuse(agent: int, _node: str, _command: str) -> None:
    answer(agent, REFUSED)
