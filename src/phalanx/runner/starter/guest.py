"""A job's access to AWS: its token, registered with this node's agent, which returns the job's credentials for it."""

from __future__ import annotations

import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict, Optional

    from phalanx.runner.loop import Loop

# The same as in the agent's node.credentials.
SOCKET = "/run/phalanx.sock"
PORT = 331
_READ_BYTES = 1 << 16
_LONGEST_LINE = 1 << 20


class Guest:
    """Registers the token, which the agent accepts as long as this process is connected to it.

    `on_trouble(reason, kind)` gets what the agent tells of the data that are mounted on this node: that a mount has
    ended ("lost"), that files which the job wrote are not in S3 ("unsaved"), or that nobody knows that ("unsure").
    """

    def __init__(self, loop: Loop, job_id: str, on_trouble: Callable[[str, str], None]) -> None:
        self.token = ""
        self.is_settled = True
        self._loop = loop
        self._job_id = job_id
        self._on_trouble = on_trouble
        self._agent: Optional[socket.socket] = None
        self._has_data = False
        self._told = b""

    def register(self) -> None:
        """Register unless that is done. Call this repeatedly: the agent may not run yet, or may restart."""
        if self._agent or not self.token:
            return
        agent = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        agent.setblocking(False)  # an agent that hangs must not block the starter
        try:
            agent.connect(SOCKET)
            agent.send(f"{self.token} {self._job_id}".encode())
        except OSError:
            agent.close()
            return
        self._agent = agent
        self._loop.watch(agent.fileno(), lambda _: self._listen(agent))

    def variables(self) -> Dict[str, str]:
        """Return the variables by which AWS's SDKs and command line find the credentials, with or without an agent."""
        if not self.token:
            return {}
        place = f"http://127.0.0.1:{PORT}/"
        return {"AWS_CONTAINER_CREDENTIALS_FULL_URI": place, "AWS_CONTAINER_AUTHORIZATION_TOKEN": self.token}

    def settle(self) -> None:
        """Ask an agent that mounts data whether all that the job has written is in S3; its answer sets `is_settled`."""
        if self._agent and self._has_data:
            try:
                self._agent.send(b"?")
                self.is_settled = False
            except OSError:
                self._lose(self._agent)

    def _listen(self, agent: socket.socket) -> None:
        try:
            told = agent.recv(_READ_BYTES)
        except OSError:
            told = b""
        if not told or len(self._told) > _LONGEST_LINE:
            self._lose(agent)
            return
        *lines, self._told = (self._told + told).split(b"\n")
        for line in lines:
            kind, _, reason = line.decode(errors="replace").partition(" ")
            if kind == "data":
                self._has_data = True
            elif kind == "settled":
                self.is_settled = True
            elif kind in ("lost", "unsaved", "unsure"):
                self._on_trouble(reason, kind)

    def _lose(self, agent: socket.socket) -> None:
        self._loop.forget(agent.fileno())
        agent.close()
        self._agent, self._told, self._has_data, self.is_settled = None, b"", False, True
