"""Serve jobs credentials of their role on loopback, by the protocol that AWS's SDKs use in containers.

Each starter of a job registers the job's token over a unix socket and stays connected. While at least one is connected,
a client that sends the token gets credentials of the job's role. They are requested when they are first needed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING, Callable, Optional

from phalanx.node import account
from phalanx.node.aws_client import Aws, AwsError
from phalanx.node.metadata import Metadata
from phalanx.node.settings import Settings

if TYPE_CHECKING:
    from typing import Protocol, Sequence

    class Mounts(Protocol):
        """What the agent has mounted for jobs (node.data_mounts)."""

        def problems(self) -> list[str]: ...
        def logged(self) -> dict[str, int]: ...
        def settle(
            self, since: dict[str, int], others: Callable[[], list[str]], is_gone: Callable[[], object]
        ) -> Sequence[Doubt]: ...

    class Doubt(Protocol):
        """What is not in S3, or may not be there."""

        @property
        def kind(self) -> str: ...
        @property
        def text(self) -> str: ...


# Also defined in runner.starter.guest. Below 1024, so that no job can take the agent's place.
SOCKET = "/run/phalanx.sock"
PORT = 331
# Each of a door's clients has a thread; fewer of them may still be sending their request.
_CLIENTS, _SENDING = 256, 64
# Of one process: a starter is connected once.
_OF_A_PROCESS = 4
_PATIENCE_S = 5
_PAUSE_S = 0.1
_LOOK_S = 0.5
_REQUEST_BYTES = 8192
# botocore renews credentials in their last 15 minutes, other SDKs in the last five.
_FRESH_S = 1800
# What the agent tells starters, a line each.
_LOST, _DATA, _SETTLED = "lost", b"data\n", b"settled\n"


def variables(token: str) -> dict[str, str]:
    """Return the variables by which AWS's programs find credentials for a token, and nothing else."""
    return {
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"http://127.0.0.1:{PORT}/",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN": token,
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }


def serve(settings: Settings, metadata: Metadata) -> Desk:
    """Start serving in threads, and return."""
    desk = Desk(settings, metadata)
    listen(SOCKET, desk.register)
    listen(("127.0.0.1", PORT), desk.answer)
    return desk


def listen(
    address: str | tuple[str, int],
    handle: Callable[[socket.socket, Callable[[], object]], None],
    kind: int = socket.SOCK_STREAM,
) -> None:
    """Handle clients at this address, each in a thread, and return. A path may be used by everybody on this node."""
    is_path = isinstance(address, str)
    if is_path and os.path.exists(address):
        os.unlink(address)
    listener = socket.socket(socket.AF_UNIX if is_path else socket.AF_INET, kind)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(address)
    listener.listen(_SENDING)
    threading.Thread(target=_Door(listener, handle).work, daemon=True).start()
    if is_path:
        os.chmod(address, 0o666)


class _Door:
    """Accepts clients without ever waiting for one: who takes long to send a request makes room for a newer client."""

    def __init__(self, listener: socket.socket, handle: Callable[[socket.socket, Callable[[], object]], None]) -> None:
        self._listener, self._handle = listener, handle
        self._room = threading.Semaphore(_CLIENTS)
        # The oldest first.
        self._sending: dict[socket.socket, None] = {}

    def work(self) -> None:
        """Handle each client in a thread. Never returns."""
        while True:
            try:
                self._let_in(self._listener.accept()[0])
            except (OSError, RuntimeError):
                time.sleep(_PAUSE_S)  # there is no descriptor or no thread at the moment

    def _let_in(self, client: socket.socket) -> None:
        if not self._room.acquire(blocking=False):
            client.close()
            return
        for oldest in list(self._sending)[: 1 - _SENDING]:
            self._sending.pop(oldest, None)
            with contextlib.suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)
        self._sending[client] = None
        try:
            threading.Thread(target=self._attend, args=(client,), daemon=True).start()
        except RuntimeError:
            self._close(client)
            raise

    def _attend(self, client: socket.socket) -> None:
        try:
            client.settimeout(_PATIENCE_S)
            self._handle(client, lambda: self._sending.pop(client, None))
        except (OSError, ValueError):
            pass  # the client has gone, or its request is invalid
        finally:
            self._close(client)

    def _close(self, client: socket.socket) -> None:
        self._sending.pop(client, None)
        client.close()
        self._room.release()


def _say(starter: socket.socket, kind: str, problems: list[str], flags: int = 0) -> None:
    for problem in problems:
        starter.sendall(f"{kind} {' '.join(problem.split())}\n".encode(), flags)


def _is_gone(starter: socket.socket) -> bool:
    with contextlib.suppress(BlockingIOError):
        return not starter.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    return False


def _shown(job: str) -> str:
    """Return a job's name as CloudTrail takes it, 64 characters together with an instance's id."""
    return re.sub(r"[^\w+=,.@-]", "-", job, flags=re.ASCII)[:44]


class Desk:
    """The jobs on this node, known by their starters' connections, and the credentials that they got."""

    def __init__(self, settings: Settings, metadata: Metadata) -> None:
        self._settings = settings
        self._uid = account.uid_of(settings.job_user)
        self._role = settings.job_role
        self._metadata = metadata
        self._aws = Aws(settings.region, settings.domain, metadata.credentials, settings.patience)
        self._jobs: dict[socket.socket, list[str]] = {}
        # Of their starters.
        self._processes: list[int] = []
        self._own: dict[str, str] = {}
        self.mounts: Optional[Mounts] = None
        # Those whose processes have ended.
        self._settling: set[socket.socket] = set()
        self._lent: dict[str, dict[str, str]] = {}
        self._lock = threading.Lock()

    def lend_to(self, token: str, name: str) -> None:
        """Lend the role to the agent's own program with this token; CloudTrail shows the name."""
        self._own[token] = name

    def tell(self, problems: list[str]) -> None:
        """Tell all jobs here what is wrong with this node's data; one that does not read holds nobody up."""
        for starter in list(self._jobs):
            with contextlib.suppress(OSError):
                _say(starter, _LOST, problems, socket.MSG_DONTWAIT)

    def register(self, starter: socket.socket, has_sent: Callable[[], object] = lambda: None) -> None:
        """Register a starter's job, "TOKEN JOB", for as long as its connection lasts, and answer what it asks."""
        process, uid, _ = struct.unpack("3i", starter.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if uid != self._uid:
            return
        token, job = starter.recv(_REQUEST_BYTES).decode().split()
        has_sent()
        self._processes.append(process)
        self._jobs[starter] = [token, job]
        try:
            if self._processes.count(process) > _OF_A_PROCESS:
                return
            starter.settimeout(_LOOK_S)
            # An agent that has started again serves credentials before it has looked at its mounts.
            while self._settings.data and not self.mounts:
                with contextlib.suppress(socket.timeout):
                    if not starter.recv(1):
                        return
            starter.settimeout(None)
            if self.mounts:
                self._attend(starter, self.mounts)
            starter.recv(1)
        finally:
            self._settling.discard(starter)
            del self._jobs[starter]
            self._processes.remove(process)

    def _attend(self, starter: socket.socket, mounts: Mounts) -> None:
        """Tell a job what has become of its data; it asks, by any byte, when its processes have ended."""
        logged = mounts.logged()
        starter.sendall(_DATA)
        _say(starter, _LOST, mounts.problems())
        while starter.recv(1):
            _say(starter, _LOST, mounts.problems())
            self._settling.add(starter)
            for doubt in mounts.settle(logged, self._at_work(self._jobs[starter][1]), lambda: _is_gone(starter)):
                _say(starter, doubt.kind, [doubt.text])
            starter.sendall(_SETTLED)

    def _at_work(self, own: str) -> Callable[[], list[str]]:
        """Return a function that returns which of the other jobs that may write now still may."""
        # Its copier of checkpoints is connected, too.
        now = {one for one, (_, job) in list(self._jobs.items()) if job != own} - self._settling

        def still() -> list[str]:
            return sorted({_shown(job[1]) for one, job in list(self._jobs.items()) if one in now - self._settling})

        return still

    def answer(self, client: socket.socket, has_sent: Callable[[], object] = lambda: None) -> None:
        """Answer an SDK's request. An error is JSON too, as the protocol requires."""
        text, end = "", time.monotonic() + _PATIENCE_S
        while "\r\n\r\n" not in text and len(text) < _REQUEST_BYTES:
            client.settimeout(max(0, end - time.monotonic()))
            piece = client.recv(_REQUEST_BYTES)
            if not piece:
                return
            text += piece.decode()
        has_sent()
        client.settimeout(_PATIENCE_S)
        named = re.search(r"(?i)\r\nauthorization:\s*(\S+)", text)
        job = {**self._own, **dict(list(self._jobs.values()))}.get(named[1] if named else "")
        refused = ("401 Unauthorized", {"code": "Unauthorized", "message": "no job has this token"})
        status, content = self._lend(job) if job else refused
        body = json.dumps(content)
        kind = "Content-Type: application/json\r\nConnection: close"
        client.sendall(f"HTTP/1.1 {status}\r\n{kind}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())

    def _lend(self, job: str) -> tuple[str, dict[str, str]]:
        soon = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + _FRESH_S))
        try:
            with self._lock:
                if self._lent.get(job, {}).get("Expiration", "") < soon:
                    self._lent = {j: c for j, c in self._lent.items() if c["Expiration"] > soon}
                    self._lent[job] = self._assume(job)
                return "200 OK", self._lent[job]
        except (AwsError, OSError) as error:
            return "502 Bad Gateway", {"code": type(error).__name__, "message": str(error)}

    def _assume(self, job: str) -> dict[str, str]:
        """Assume the job's role, for an hour at most because of role chaining (docs/aws-behaviour.md 6)."""
        name = f"{_shown(job)}@{self._metadata.identity().instance_id}"
        asked = {"RoleArn": self._role, "RoleSessionName": name}
        found = dict(re.findall("<(\\w+)>([^<]+)<", self._aws.query("sts", "2011-06-15", "AssumeRole", asked).decode()))
        kept = {name: found[name] for name in ("AccessKeyId", "SecretAccessKey", "Expiration")}
        return {**kept, "Token": found["SessionToken"], "RoleArn": self._role}
