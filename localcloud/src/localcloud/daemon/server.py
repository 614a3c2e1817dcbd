"""The process behind the endpoint: it serves the API on all its sockets until it is asked to stop."""

from __future__ import annotations

import gc
import logging
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import localcloud
from localcloud import accounts
from localcloud.api import moto_setup
from localcloud.context import ADMIN, Context, Issued
from localcloud.daemon import endpoint_file
from localcloud.daemon.room import Gauges
from localcloud.network import shell
from localcloud.network.accounts import Accounts
from localcloud.nodes import userns
from localcloud.nodes.machine import API_ADDRESS, API_PORT, IMDS_ADDRESS, IMDS_PORT
from localcloud.weather import forecast
from localcloud.weather.sky import Weather

if TYPE_CHECKING:
    from localcloud.api.http import HttpServer
    from localcloud.cloudformation.engine import Engine
    from localcloud.ec2.imds import Imds
    from localcloud.network.guard import Guard
    from localcloud.nodes.client import NodeRunner

log = logging.getLogger(__name__)
IDLE_S = 30.0
_TURN_S = 0.0005
DIAL_SOCKET = "dial.sock"


@dataclass(frozen=True)
class Daemon:
    """What the daemon passes to the API's process. `process` is the daemon's record, as this machine's programs see it.

    `no_cgroup` is the reason why nodes can't have control groups of their own, which systemd needs; "" if they can.
    `accounts` tells whose the connections to the API are; None where the kernel can't.
    """

    state: Path
    mode: str
    process: Mapping[str, int]
    warnings: tuple[str, ...] = ()
    no_cgroup: str = ""
    images: Path | None = None
    prices: Path | None = None
    gauges: Gauges | None = None
    accounts: Accounts | None = None


class IdleWatch:
    """Calls `stop` when there has been nothing of a user and no request for IDLE_S seconds."""

    def __init__(self, context: Context, is_needed: Callable[[], bool], stop: Callable[[], None]) -> None:
        self._clock, self._is_needed, self._stop = context.clock, is_needed, stop
        self._last = self._clock.now()
        self._clock.call_later(IDLE_S, self._look)

    def touch(self) -> None:
        """Record a request."""
        self._last = self._clock.now()

    def _look(self) -> None:
        if self._is_needed():
            self.touch()
        quiet_s = (self._clock.now() - self._last).total_seconds()
        if quiet_s >= IDLE_S:
            self._stop()
        else:
            self._clock.call_later(IDLE_S - quiet_s, self._look)


class VpcDoors:
    """Lets the API and the metadata service answer inside VPCs."""

    def __init__(self, runner: NodeRunner, http: HttpServer, imds: Imds, guard: Guard) -> None:
        self._runner, self._http, self._imds, self._guard = runner, http, imds, guard
        self._open: dict[str, socket.socket] = {}
        self._lock = threading.Lock()

    def open(self, vpc_id: str) -> None:
        """Open the VPC's sockets, unless they are open, and wait until its network is as its records say."""
        with self._lock:
            if vpc_id not in self._open:
                self._open[vpc_id] = self._runner.listen(vpc_id, API_ADDRESS, API_PORT)
                self._http.attach(self._open[vpc_id], vpc_id)
                self._runner.open_way_out(vpc_id)
                self._imds.attach(vpc_id, self._runner.listen(vpc_id, IMDS_ADDRESS, IMDS_PORT))
                self._guard.open(vpc_id)
        self._guard.settle()

    def close(self, vpc_id: str) -> None:
        """Close the VPC's sockets and remove its network, if it has one."""
        with self._lock:
            listener = self._open.pop(vpc_id, None)
            if listener:
                self._http.detach([listener])
                self._imds.detach(vpc_id)
                self._runner.close_way_out(vpc_id)
                self._guard.close(vpc_id)
        self._runner.remove_vpc(vpc_id)


def serve(daemon: Daemon, runner: NodeRunner, listener: socket.socket, ready: Callable[[], None]) -> None:
    """Run the API until it is stopped; call `ready` once endpoint.json is written."""
    url = "http://{}:{}".format(*listener.getsockname()[:2])
    root = userns.root_of_nodes(daemon.mode)
    weather = Weather(forecast.read(daemon.state))
    context = Context(runner=runner, state=daemon.state, url_host=url, root_of_nodes=root, weather=weather)
    context.images, context.prices, context.gauges = daemon.images, daemon.prices, daemon.gauges
    admin = context.issue(ADMIN)
    stopped = threading.Event()
    # While hundreds of nodes boot, dozens of threads take turns: by default each has one for 5 ms.
    sys.setswitchinterval(_TURN_S)
    # While moto is loaded there is no garbage to find, and the search would take a sixth of the start.
    gc.disable()
    moto_setup.install(daemon.images)
    # moto must be set up before the first module that imports its EC2.
    from localcloud.api import app as api
    from localcloud.daemon import control

    context.profile = accounts.read(daemon.state)
    app, engine = api.build(context)
    idle = IdleWatch(context, lambda: _is_needed(engine), stopped.set)
    pid = daemon.process["pid"]
    controls = control.Control(context, engine, admin.secret_access_key, daemon.mode, pid, stopped.set)
    _open_doors(context, controls.around(app, idle.touch), listener, daemon.accounts)
    context.spawn(_preload, context.account)
    endpoint_file.write(daemon.state, _endpoint(daemon, context, admin))
    ready()
    stopped.wait()
    _end(daemon, context, engine)


def _is_needed(engine: Engine) -> bool:
    """Whether there is a stack, or an instance, a VPC or a reservation that somebody made without one."""
    from localcloud.ec2 import fleet, reserved
    from localcloud.ec2 import service as ec2

    stacks = any(not stack.gone for stack in engine.stacks)
    held = reserved.active(fleet.current().context.clock.now())
    return stacks or bool(fleet.current().live()) or bool(ec2.vpcs_of_users()) or bool(held)


def _preload(account: str) -> None:
    try:
        moto_setup.preload(account)
    finally:
        gc.freeze()
        gc.enable()


def _open_doors(context: Context, app: Any, listener: socket.socket, accounts: Accounts | None) -> None:
    from localcloud.api.admission import FUNCTIONS
    from localcloud.api.http import HttpServer
    from localcloud.ec2 import service as ec2
    from localcloud.ec2.imds import Imds
    from localcloud.network import reach
    from localcloud.network.dialer import Dialer
    from localcloud.network.guard import Guard
    from localcloud.network.sessions import Sessions

    guard = Guard(context.runner, ec2.network(context))
    context.network_changed = guard.changed
    http = HttpServer(reach.around(guard, guard.around(app)), listener, accounts)
    context.at_stop(http.close)
    doors = VpcDoors(context.runner, http, Imds(ec2.lookup(context)), guard)
    context.serve_vpc, context.close_vpc = doors.open, doors.close
    http.attach_for(FUNCTIONS, _own_address())
    open_session = Sessions(context, guard.way).connect
    dialer = Dialer(context.state / DIAL_SOCKET, ec2.locate, context.runner.connect, open_session)
    context.at_stop(dialer.close)


def _own_address() -> socket.socket:
    """Listen at the API's address inside VPCs in our own network namespace too, for the Lambda functions."""
    from localcloud.network.netlink import Rtnetlink

    link = Rtnetlink()
    link.add_address("lo", API_ADDRESS, 32)
    link.close()
    return socket.create_server((API_ADDRESS, API_PORT), backlog=128)


def _endpoint(daemon: Daemon, context: Context, admin: Issued) -> dict[str, Any]:
    """What docs/interface.md says of endpoint.json."""
    from localcloud.daemon import probe

    return {
        "format": endpoint_file.FORMAT,
        "url": context.url_host,
        **daemon.process,
        "code": localcloud.code(),
        "mode": daemon.mode,
        "access_key_id": admin.access_key_id,
        "secret_access_key": admin.secret_access_key,
        "dial": shell.dial_command(daemon.state / DIAL_SOCKET),
        "ssh_options": list(shell.SSH_OPTIONS),
        "state": str(daemon.state),
        "accounts_separated": daemon.mode != "single",
        "warnings": [*daemon.warnings, *context.warnings],
        "no_cgroup": daemon.no_cgroup,
        "open_networks": next((text for text in daemon.warnings if text.startswith(probe.OPEN_NETWORKS)), ""),
    }


def _end(daemon: Daemon, context: Context, engine: Engine) -> None:
    from localcloud.storage import file_systems

    endpoint_file.remove(daemon.state)
    left = [stack.name for stack in engine.stacks if not stack.gone]
    if left:
        log.warning("stopped with stacks: %s", ", ".join(left))
    context.stop()
    for node in context.runner.nodes():
        context.runner.kill(node.instance_id)
    file_systems.sweep(daemon.state)
