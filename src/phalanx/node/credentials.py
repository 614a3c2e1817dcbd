"""Serve jobs credentials of their role on loopback, by the protocol that AWS's SDKs use in containers.

Each starter of a job registers the job's token over a unix socket and stays connected. While at least one is connected,
a client that sends the token gets credentials of the job's role. They are requested when they are first needed.
"""

from __future__ import annotations

import json
import os
import re
import socket
import struct
import threading
import time
from typing import Callable

from phalanx.node import account
from phalanx.node.aws_client import Aws, AwsError
from phalanx.node.metadata import Metadata
from phalanx.node.settings import Settings

# Also defined in runner.starter.guest. Below 1024, so that no job can take the agent's place.
SOCKET = "/run/phalanx.sock"
PORT = 331
_AT_ONCE = 64
_PATIENCE_S = 5
_REQUEST_BYTES = 8192
# botocore renews credentials in their last 15 minutes, other SDKs in the last five.
_FRESH_S = 1800


def serve(settings: Settings, metadata: Metadata) -> None:
    """Start serving in threads, and return."""
    if os.path.exists(SOCKET):
        os.unlink(SOCKET)
    desk = Desk(settings, metadata)
    for family, address, handle in (
        (socket.AF_UNIX, SOCKET, desk.register),
        (socket.AF_INET, ("127.0.0.1", PORT), desk.answer),
    ):
        listener = socket.socket(family)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_AT_ONCE)
        threading.Thread(target=_listen, args=(listener, handle), daemon=True).start()
    os.chmod(SOCKET, 0o666)


def _listen(listener: socket.socket, handle: Callable[[socket.socket], None]) -> None:
    """Handle each connection in a thread, with a limit on their number for each listener."""
    room = threading.Semaphore(_AT_ONCE)

    def work(connection: socket.socket) -> None:
        with connection:
            try:
                connection.settimeout(_PATIENCE_S)
                handle(connection)
            except (OSError, ValueError):
                pass  # the client has gone, or its request is invalid
        room.release()

    while True:
        room.acquire()
        threading.Thread(target=work, args=(listener.accept()[0],), daemon=True).start()


class Desk:
    """The jobs on this node, known by their starters' connections, and the credentials that they got."""

    def __init__(self, settings: Settings, metadata: Metadata) -> None:
        self._uid = account.uid_of(settings.job_user)
        self._role = settings.job_role
        self._metadata = metadata
        self._aws = Aws(settings.region, settings.domain, metadata.credentials)
        self._jobs: dict[socket.socket, list[str]] = {}
        self._lent: dict[str, dict[str, str]] = {}
        self._lock = threading.Lock()

    def register(self, starter: socket.socket) -> None:
        """Register a starter's job, "TOKEN JOB", for as long as its connection lasts."""
        token, job = starter.recv(_REQUEST_BYTES).decode().split()
        if struct.unpack("3i", starter.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1] != self._uid:
            return
        self._jobs[starter] = [token, job]
        try:
            starter.settimeout(None)
            starter.recv(1)
        finally:
            del self._jobs[starter]

    def answer(self, client: socket.socket) -> None:
        """Answer an SDK's request. An error is JSON too, as the protocol requires."""
        text = ""
        while "\r\n\r\n" not in text and len(text) < _REQUEST_BYTES:
            piece = client.recv(_REQUEST_BYTES)
            if not piece:
                return
            text += piece.decode()
        named = re.search(r"(?i)\r\nauthorization:\s*(\S+)", text)
        job = dict(list(self._jobs.values())).get(named[1] if named else "")
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
        # CloudTrail shows this name; 64 characters at most.
        name = re.sub(r"[^\w+=,.@-]", "-", job)[:44]
        asked = {"RoleArn": self._role, "RoleSessionName": f"{name}@{self._metadata.identity().instance_id}"}
        found = dict(re.findall("<(\\w+)>([^<]+)<", self._aws.query("sts", "2011-06-15", "AssumeRole", asked).decode()))
        kept = {name: found[name] for name in ("AccessKeyId", "SecretAccessKey", "Expiration")}
        return {**kept, "Token": found["SessionToken"], "RoleArn": self._role}
