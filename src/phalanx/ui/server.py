"""Serves the pages on loopback until Ctrl-C."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import uvicorn

from phalanx.jobs.relay import loopback
from phalanx.jobs.tunnel import PortTakenError
from phalanx.ui.door import Door
from phalanx.ui.pages import application

if TYPE_CHECKING:
    from phalanx.ui.queries import Queries


class Page:
    """The pages, on a port of loopback (0: a free one). Raises PortTakenError."""

    def __init__(self, queries: Queries, port: int = 0) -> None:
        try:
            self._sockets = loopback(port)
        except OSError as error:
            raise PortTakenError(f"port {port} of this machine is not available: {error.strerror}", _OTHER) from error
        app = application(queries, lambda: self._server.should_exit)
        self.door = Door(app, self._sockets[0].getsockname()[1])
        # No log of requests, no trust in headers of proxies, and streams end with the server.
        config = uvicorn.Config(
            self.door,
            loop="asyncio",
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)

    def serve(self, ready: Callable[[str], object]) -> None:
        """Call `ready` with the link that opens the pages, and serve them. Raises KeyboardInterrupt."""
        ready(self.door.link)
        self._server.run(sockets=self._sockets)

    def end(self) -> None:
        """Have `serve` end, from another thread."""
        self._server.should_exit = True


_OTHER = "Choose another port with --port, or leave it out."
