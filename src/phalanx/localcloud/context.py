"""What every part of the local cloud shares: account, keys, node runner, clock, threads and end-of-life hooks."""

from __future__ import annotations

import logging
import secrets
import string
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phalanx.localcloud.clock import Clock, RealClock
from phalanx.localcloud.nodes.machine import API_URL

if TYPE_CHECKING:
    from phalanx.localcloud.nodes import NodeRunner

log = logging.getLogger(__name__)

ADMIN = "admin"


@dataclass(frozen=True)
class Issued:
    """Credentials that this local cloud handed out. `principal` is "admin" or the name of an IAM role."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str = field(repr=False)
    principal: str


@dataclass
class Context:
    """One running local cloud.

    `url_host` is the API's address on this machine, `url_nodes` the one inside every node.
    `serve_vpc(vpc_id)` makes API and metadata answer inside a VPC: before each boot there; twice is harmless.
    `close_vpc(vpc_id)` ends that and takes the VPC's network away; harmless when there is none.
    """

    runner: NodeRunner
    state: Path
    url_host: str
    url_nodes: str = API_URL
    account: str = "123456789012"
    issued: dict[str, Issued] = field(default_factory=dict)
    clock: Clock = field(default_factory=RealClock)
    serve_vpc: Callable[[str], None] = lambda _vpc_id: None
    close_vpc: Callable[[str], None] = lambda _vpc_id: None
    _at_stop: list[Callable[[], object]] = field(default_factory=list)

    def issue(self, principal: str) -> Issued:
        """New credentials for `principal`; only keys issued here are accepted by the API."""
        prefix = "AKIA" if principal == ADMIN else "ASIA"
        token = "" if principal == ADMIN else secrets.token_urlsafe(48)
        alphabet = string.ascii_uppercase + string.digits
        key_id = prefix + "".join(secrets.choice(alphabet) for _ in range(16))
        issued = Issued(key_id, secrets.token_urlsafe(30), token, principal)
        self.issued[key_id] = issued
        return issued

    def spawn(self, call: Callable[..., object], *args: Any, name: str = "") -> threading.Thread:
        """Runs `call(*args)` on a daemon thread; what it raises is logged, never lost."""
        thread = threading.Thread(target=_logged, args=(call, *args), name=name or call.__name__, daemon=True)
        thread.start()
        return thread

    def at_stop(self, call: Callable[[], object]) -> None:
        """Registers work for an orderly stop; run in reverse order of registration."""
        self._at_stop.append(call)

    def stop(self) -> None:
        """Runs the registered end-of-life work, each piece whatever becomes of the others."""
        while self._at_stop:
            _logged(self._at_stop.pop())


def _logged(call: Callable[..., object], *args: Any) -> None:
    try:
        call(*args)
    except Exception:
        log.exception("%s failed", getattr(call, "__qualname__", call))
