"""Keeps each VPC's packet filter as the records of EC2, EFS and FSx require, whichever API changes them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any

from localcloud.iam.calls import CALL
from localcloud.network import reach, ruleset
from localcloud.network.mount_targets import MountTargets
from localcloud.network.reach import Way
from localcloud.network.records import Dns, Network
from localcloud.nodes.client import NodeRunner
from localcloud.nodes.packet_filter import CannotFilter

log = logging.getLogger(__name__)

WsgiApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
_SETTLE_TIMEOUT_S = 30.0
_SERVICES = ("ec2", "elasticfilesystem", "fsx")
_READS = ("Describe", "Get", "GET ")


class Guard:
    """Loads filters on a thread of its own: changes that arrive in the meantime share the next ruleset.

    `read` returns the network of a VPC, or None when it is gone.
    """

    def __init__(self, runner: NodeRunner, read: Callable[[str], Network | None]) -> None:
        self._runner, self._read = runner, read
        self._targets = MountTargets(runner)
        self._loaded: dict[str, str] = {}
        # Of VPCs whose filter is loaded. Where it can't be, networks are open.
        self._networks: dict[str, Network] = {}
        self._told: dict[str, Dns] = {}
        self._updating = threading.Lock()
        self._wanted = self._done = 0
        self._turn = threading.Condition()
        threading.Thread(target=self._run, name="networks", daemon=True).start()

    def open(self, vpc_id: str) -> None:
        """Guard a VPC's network from the next change on. Harmless when it is guarded already."""
        with self._updating:
            self._loaded.setdefault(vpc_id, "")

    def close(self, vpc_id: str) -> None:
        """Forget a VPC; its network, which any call to the runner would make again, is not touched after this."""
        with self._updating:
            self._loaded.pop(vpc_id, None)
            self._networks.pop(vpc_id, None)
            self._told.pop(vpc_id, None)
            self._targets.close(vpc_id)

    def way(self, vpc_id: str, address: str, service: str) -> Way | None:
        """Return the way from a node to a service of AWS; None if there is none."""
        network = self._networks.get(vpc_id)
        return reach.way(network, address, service) if network else Way()

    def changed(self) -> None:
        """Note that records may have changed, and return at once."""
        with self._turn:
            self._wanted += 1
            self._turn.notify_all()

    def settle(self) -> None:
        """Wait until the filters correspond to the records as they are now."""
        with self._turn:
            self._wanted += 1
            mine = self._wanted
            self._turn.notify_all()
            if not self._turn.wait_for(lambda: self._done >= mine, _SETTLE_TIMEOUT_S):
                log.warning("networks are not up to date after %.0f s", _SETTLE_TIMEOUT_S)

    def around(self, app: WsgiApp) -> WsgiApp:
        """Put the guard behind the API: calls that may change a network are noted after they have been carried out."""

        def guarded(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
            answer = app(environ, start_response)
            call = environ.get(CALL)
            if call is not None and call.service in _SERVICES and not call.operation.startswith(_READS):
                self.changed()
            return answer

        return guarded

    def _run(self) -> None:
        while True:
            with self._turn:
                self._turn.wait_for(lambda: self._wanted > self._done)
                target = self._wanted
            for vpc_id in list(self._loaded):
                with self._updating:
                    self._update(vpc_id)
            with self._turn:
                self._done = target
                self._turn.notify_all()

    def _update(self, vpc_id: str) -> None:
        try:
            network = self._read(vpc_id)
            if network is not None and vpc_id in self._loaded:
                self._targets.follow(vpc_id, {target.address: target.port for target in network.mount_targets})
                self._tell(vpc_id, network.dns)
                self._load(vpc_id, ruleset.text(network))
                self._networks[vpc_id] = network
        except CannotFilter as problem:
            self._networks.pop(vpc_id, None)
            log.warning("%s stays as it was: %s", vpc_id, problem)
        except Exception:
            log.exception("the network of %s stays as it was", vpc_id)

    def _tell(self, vpc_id: str, dns: Dns) -> None:
        """Let the VPC's name server know what it answers, also where no packet can be filtered."""
        if self._told.get(vpc_id) != dns:
            self._runner.resolve(vpc_id, dns)
            self._told[vpc_id] = dns

    def _load(self, vpc_id: str, text: str) -> None:
        """Load a ruleset unless it is loaded; one that could not be loaded is tried again at the next change."""
        before = self._loaded[vpc_id]
        if before != text:
            self._loaded[vpc_id] = ""
            self._runner.filter(vpc_id, ruleset.change(before, text))
            if vpc_id in self._loaded:
                self._loaded[vpc_id] = text
