"""The faults of a drill: when each may strike, and which reasons of a failure then are true."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.drill import strikes
from benchmarks.drill.scenarios import DOWN, IDLE, REPLACEMENT, RUN, SCALE, UP
from benchmarks.drill.strikes import Strike


@dataclass(frozen=True)
class Fault:
    """A fault. `names`: by step, the reasons of a failure that are true; in other steps nothing may fail.

    `fatal`: the step can't succeed. `first`: it strikes before the step begins. `sends`: it is a signal to the user's
    own command, which is then given again.
    """

    strike: Strike
    steps: tuple[str, ...]
    names: Mapping[str, str] = field(default_factory=dict)
    fatal: tuple[str, ...] = ()
    first: bool = False
    sends: int = 0


# What a job says whose node or head was lost.
_LOST = (
    r"deeplearning-worker\d+ (was lost|can't be reached)|head lost|runner died|can't log in to|can't be reached"
    r"|did not accept the job|the connection to \S+ broke"
)
# A node that ends, or is cut off, between its acknowledgement and the head's login can't be what was requested.
_NO_LOGIN = r"accepted no login"
_ENDING = {RUN: _LOST, UP: _NO_LOGIN}
_RIGHT = r"has lost a policy|a right is missing|not authorized to perform"
_WAY_OUT = r"has lost its route|no way out"
_DOOR = r"has lost its rules"
_FULL = r"No space left|is full"
_ALIVE = (RUN, IDLE)
_ALWAYS = (UP, RUN, IDLE, REPLACEMENT, SCALE)
FAULTS: dict[str, Fault] = {
    "dies": Fault(strikes.dies, _ALWAYS, _ENDING),
    "dies silently": Fault(strikes.dies_silently, _ALWAYS, _ENDING),
    "is terminated by hand": Fault(strikes.is_terminated, _ALWAYS, _ENDING),
    "is cut off": Fault(strikes.is_cut_off, _ALIVE, _ENDING),
    "stands still": Fault(strikes.stalls, (UP, *_ALIVE, SCALE), _ENDING),
    "loses its shared directory": Fault(strikes.is_frozen, _ALIVE, {RUN: rf"shared directory|{_LOST}"}),
    "loses its sshd": Fault(strikes.loses_sshd, (UP, *_ALIVE, SCALE), _ENDING),
    "loses its agent": Fault(strikes.loses_agent, (UP, *_ALIVE, SCALE), _ENDING),
    "is taken back": Fault(strikes.has_notice, _ALIVE, _ENDING),
    "fills its disk": Fault(strikes.fill_disk, _ALIVE, {RUN: _FULL, IDLE: _FULL}),
    "no capacity": Fault(
        strikes.lacks_capacity,
        (UP, REPLACEMENT, SCALE),
        dict.fromkeys((UP, REPLACEMENT, SCALE), "capacity"),
        (UP, REPLACEMENT, SCALE),
        first=True,
    ),
    "quota of vCPUs": Fault(strikes.quota("vcpu_limit", 2), (UP,), {UP: "quota of vCPUs"}, (UP,), first=True),
    "quota of addresses": Fault(
        strikes.quota("address_limit", 1), (UP,), {UP: "quota of Elastic IPs"}, (UP,), first=True
    ),
    "quota of VPCs": Fault(strikes.quota("vpc_limit", 1), (UP,), {UP: "quota of VPCs"}, (UP,), first=True),
    "launches fail twice": Fault(strikes.refuses_launches, (UP, REPLACEMENT, SCALE), first=True),
    "policy detached": Fault(strikes.detach_policy, (UP, IDLE), {UP: _RIGHT, IDLE: _RIGHT}),
    "rule revoked": Fault(
        strikes.revoke_rule, (UP, *_ALIVE), {**dict.fromkeys(_ALIVE, _DOOR), UP: rf"{_DOOR}|{_NO_LOGIN}"}
    ),
    "route deleted": Fault(strikes.delete_route, (UP, IDLE), {UP: _WAY_OUT, IDLE: _WAY_OUT}),
    "Ctrl-C": Fault(strikes.nothing, (UP, SCALE, DOWN), sends=signal.SIGINT),
    "command killed": Fault(strikes.nothing, (UP, SCALE, DOWN), sends=signal.SIGKILL),
}


def possible() -> list[tuple[str, str]]:
    """Return each fault with each step in which it may strike."""
    return [(name, step) for name, fault in FAULTS.items() for step in fault.steps]
