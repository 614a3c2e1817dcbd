"""A job's access to AWS: its token, registered with this node's agent, which returns the job's credentials for it."""

from __future__ import annotations

# The C half, for the reason that lean.py gives.
import _socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Optional

    from phalanx.runner.loop import Loop

# The same as in the agent's node.credentials.
SOCKET = "/run/phalanx.sock"
PORT = 331


class Guest:
    """Registers the token, which the agent accepts as long as this process is connected to it."""

    def __init__(self, loop: Loop, job_id: str) -> None:
        self.token = ""
        self._loop = loop
        self._job_id = job_id
        self._agent: Optional[_socket.socket] = None

    def register(self) -> None:
        """Register unless that is done. Call this repeatedly: the agent may not run yet, or may restart."""
        if self._agent or not self.token:
            return
        agent = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        agent.setblocking(False)  # an agent that hangs must not block the starter
        try:
            agent.connect(SOCKET)
            agent.send(f"{self.token} {self._job_id}".encode())
        except OSError:
            agent.close()
            return
        self._agent = agent
        self._loop.watch(agent.fileno(), lambda _: self._lose(agent))

    def variables(self) -> Dict[str, str]:
        """Return the variables by which AWS's SDKs and command line find the credentials, with or without an agent."""
        if not self.token:
            return {}
        place = f"http://127.0.0.1:{PORT}/"
        return {"AWS_CONTAINER_CREDENTIALS_FULL_URI": place, "AWS_CONTAINER_AUTHORIZATION_TOKEN": self.token}

    def _lose(self, agent: _socket.socket) -> None:
        self._loop.forget(agent.fileno())
        agent.close()
        self._agent = None
