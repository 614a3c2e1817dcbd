"""What all parts of the local cloud share: account, keys, node runner, clock, threads and shutdown hooks."""

from __future__ import annotations

import logging
import secrets
import string
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localcloud.accounts import ACCOUNT, OWN
from localcloud.clock import Clock, RealClock
from localcloud.daemon.room import Gauges
from localcloud.nodes.machine import API_URL
from localcloud.weather.sky import Weather

if TYPE_CHECKING:
    from localcloud.nodes.client import NodeRunner

log = logging.getLogger(__name__)

ADMIN = "admin"


@dataclass(frozen=True)
class Issued:
    """Credentials that this local cloud issued. `principal` is "admin" or the name of an IAM role."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str = field(repr=False)
    principal: str


@dataclass
class Context:
    """One running local cloud.

    `url_host` is the API's address on this machine, `url_nodes` its address inside every node.
    `serve_vpc(vpc_id)` makes the API and the metadata service available inside a VPC; it is called before each boot
    there and may be called twice. `close_vpc(vpc_id)` undoes it and removes the VPC's network, if there is one.
    `profile` says whose account it is (accounts).
    `warnings` are in endpoint.json. `images` is the directory of images with a full operating system.
    `prices` is the file of AWS's price list (products). `gauges` show this machine's limits (room); None: it has none.
    `network_changed()` is called after changes of records that decide about packets (network.guard).
    `keep_buckets()` writes what has changed in buckets (kept_buckets).
    `forget_mounts(vpc_id)` ends the mounts of buckets in a VPC (mounted_buckets).
    `root_of_nodes` is the uid and gid that own what nodes mount (userns.root_of_nodes).
    """

    runner: NodeRunner
    state: Path
    url_host: str
    url_nodes: str = API_URL
    account: str = ACCOUNT
    profile: str = OWN
    root_of_nodes: int = 0
    issued: dict[str, Issued] = field(default_factory=dict)
    clock: Clock = field(default_factory=RealClock)
    weather: Weather = field(default_factory=Weather)
    serve_vpc: Callable[[str], None] = lambda _vpc_id: None
    close_vpc: Callable[[str], None] = lambda _vpc_id: None
    warnings: list[str] = field(default_factory=list)
    images: Path | None = None
    prices: Path | None = None
    gauges: Gauges | None = None
    network_changed: Callable[[], None] = lambda: None
    keep_buckets: Callable[..., None] = lambda: None
    forget_mounts: Callable[[str], None] = lambda _vpc_id: None
    _at_stop: list[Callable[[], object]] = field(default_factory=list)

    def issue(self, principal: str) -> Issued:
        """Issue new credentials for `principal`; the API accepts no others."""
        prefix = "AKIA" if principal == ADMIN else "ASIA"
        token = "" if principal == ADMIN else secrets.token_urlsafe(48)
        alphabet = string.ascii_uppercase + string.digits
        key_id = prefix + "".join(secrets.choice(alphabet) for _ in range(16))
        issued = Issued(key_id, secrets.token_urlsafe(30), token, principal)
        self.issued[key_id] = issued
        return issued

    def warn(self, message: str) -> None:
        """Log a warning, and show it to the user."""
        log.warning(message)
        self.warnings.append(message)

    def spawn(self, call: Callable[..., object], *args: Any, name: str = "") -> threading.Thread:
        """Run `call(*args)` on a daemon thread, and log what it raises."""
        thread = threading.Thread(target=_logged, args=(call, *args), name=name or call.__name__, daemon=True)
        thread.start()
        return thread

    def at_stop(self, call: Callable[[], object]) -> None:
        """Register a call for an orderly stop; calls run in reverse order of registration."""
        self._at_stop.append(call)

    def stop(self) -> None:
        """Run the registered calls, each even if others fail."""
        while self._at_stop:
            _logged(self._at_stop.pop())


def _logged(call: Callable[..., object], *args: Any) -> None:
    try:
        call(*args)
    except Exception:
        log.exception("%s failed", getattr(call, "__qualname__", call))
