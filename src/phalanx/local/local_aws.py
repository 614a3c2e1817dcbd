"""AWS's API as the local cloud serves it: at its own endpoint, with its own keys."""

from __future__ import annotations

import os
from functools import cached_property
from typing import Any

from phalanx.aws import sessions
from phalanx.aws.aws import Aws
from phalanx.errors import CloudError, CloudUnreachable
from phalanx.local import endpoint

_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")


class LocalAws(Aws):
    """The local cloud's API. Every method raises NotRunning when nothing has started it."""

    # Each poll costs the local cloud 10 ms of CPU, which its nodes need while they boot.
    poll_interval_s = 0.15
    retry_mode = "standard"

    def __init__(self, region: str, name: str = "local") -> None:
        super().__init__(region, name)

    def attempts(self) -> int:
        """Two: it runs on this machine, so that more don't help. Only bad weather throttles calls."""
        is_calm = endpoint.status(self.endpoint)["weather"]["seed"] is None
        return min(2, super().attempts()) if is_calm else super().attempts()

    @cached_property
    def endpoint(self) -> endpoint.Endpoint:
        """The local cloud's address, once it has started. Raises NotRunning when nothing has started it."""
        return endpoint.wait()

    def session(self) -> sessions.Session:
        """Return a session of the administrator, or of whoever's keys for this local cloud the shell has.

        Nothing else of the shell's settings of AWS matters, nor of the user's ~/.aws.
        """
        if os.environ.get("AWS_ENDPOINT_URL") == self.endpoint.url and all(os.environ.get(name) for name in _KEYS):
            return sessions.apart(*(os.environ[name] for name in _KEYS))
        return sessions.apart(self.endpoint.access_key_id, self.endpoint.secret_access_key)

    def endpoint_url(self) -> str | None:
        return self.endpoint.url

    def call(self, service: str, operation: str, **arguments: Any) -> dict[str, Any]:
        """Make a call as to AWS. Raises NotRunning when another command has stopped the local cloud."""
        try:
            return super().call(service, operation, **arguments)
        except CloudError as error:
            if isinstance(error, CloudUnreachable):
                endpoint.require_alive(self.endpoint)
            error.hint = error.hint or endpoint.remedy(self.endpoint)
            raise
