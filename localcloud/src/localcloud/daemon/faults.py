"""Fault injection: what POST /_localcloud/faults can set, for tests and for users' drills."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

from localcloud.cloudformation.validations import PLANTED, Validation
from localcloud.context import Context
from localcloud.ec2 import account_quotas, capacity_blocks, fleet, interruptions
from localcloud.ec2.capacity import EVERYWHERE, LaunchFailure
from localcloud.nodes.machine import NodeError
from localcloud.weather.absences import AWAY_S

# EC2's status checks need minutes to notice a host that dies silently (docs/aws-behaviour.md 3.16).
NOTICED_AFTER_S = 120.0


class FaultError(ValueError):
    """The document names an unknown fault or an invalid value; the text says which."""


def apply(context: Context, document: dict[str, Any]) -> dict[str, Any]:
    """Set the faults that `document` names, in its order, and return it. Raises FaultError.

    capacity       {"c5.large": 3, "c5.large/us-east-1a": 1}: maximum number of instances; null lifts the limit
    vcpu_limit     the account's vCPU quota, or null
    address_limit  its quota of Elastic IPs, or null
    vpc_limit      its quota of VPCs, or null
    boot_delay_s   seconds between a launch and the boot of its node
    fail_launch    a message, or {"message", "code", "times"}; null lifts the fault
    kill           {"instance_id", "silent": false, "noticed_after_s": 120}: the machine dies
    partition      {"instance_id", "cut": true}: cut it off from all others; false reconnects it
    link           {"instance_id", "rate_bit_s": 1000000000, "delay_s": 0}: what its link carries; 0 lifts each
    freeze         {"instance_id", "for_s": 300}: its shared directory answers nothing for a while; 0 ends that
    interrupt      {"instance_id", "notice_s": 120}: EC2 takes a spot instance back, after its notice
    clear_block    {"reservation_id"}: EC2 ends all instances in a Capacity Block now, and starts none there
    end            {"instance_id", "command"}: the kernel kills the processes whose command lines match this regular
                   expression, as when memory runs out
    change_sets    {"takes_s": 0, "validations": []}: how long CloudFormation makes a change set, and what it finds:
                   {"logical_id", "reason", "name": "PROPERTY_VALIDATION", "mode": "FAIL" or "WARN", "path"}
    stall          {"instance_id", "for_s": 40}: its processes stand still for a while, and its port 22 still answers
    """
    unknown = sorted(set(document) - set(_FAULTS))
    if unknown:
        raise FaultError(f"unknown fault {', '.join(unknown)}; the faults are {', '.join(_FAULTS)}")
    for name, value in document.items():
        _set(context, name, value)
    return document


def _set(context: Context, name: str, value: Any) -> None:
    try:
        _FAULTS[name](context, value)
    except (TypeError, KeyError, AttributeError, ValueError, NodeError) as error:
        raise FaultError(f"fault {name}: {error}") from error


def _capacity(_context: Context, limits: dict[str, int | None]) -> None:
    for key, count in limits.items():
        instance_type, _, zone = key.partition("/")
        fleet.current().pool.limit(instance_type, None if count is None else int(count), zone or EVERYWHERE)


def _vcpu_limit(_context: Context, count: int | None) -> None:
    fleet.current().pool.limit_vcpus(None if count is None else int(count))


def _address_limit(_context: Context, count: int | None) -> None:
    account_quotas.limit(account_quotas.ADDRESSES, None if count is None else int(count))


def _vpc_limit(_context: Context, count: int | None) -> None:
    account_quotas.limit(account_quotas.VPCS, None if count is None else int(count))


def _boot_delay(_context: Context, seconds: float) -> None:
    fleet.current().boot_delay_s = float(seconds)


def _fail_launch(_context: Context, failure: str | dict[str, Any] | None) -> None:
    pool = fleet.current().pool
    if failure is None:
        pool.fail_launches(None)
    elif isinstance(failure, str):
        pool.fail_launches(LaunchFailure(failure))
    else:
        times = failure.get("times")
        code = failure.get("code", "Client.InternalError")
        pool.fail_launches(LaunchFailure(failure["message"], code, None if times is None else int(times)))


def _kill(context: Context, fault: dict[str, Any]) -> None:
    instance_id, silent = _running(fault), bool(fault.get("silent"))
    context.runner.kill(instance_id, silent)
    noticed_after_s = float(fault.get("noticed_after_s", NOTICED_AFTER_S if silent else 0))
    if noticed_after_s > 0:
        context.clock.call_later(noticed_after_s, fleet.current().exited, instance_id)
    else:
        fleet.current().exited(instance_id)


def _partition(context: Context, fault: dict[str, Any]) -> None:
    context.runner.partition(_running(fault), bool(fault.get("cut", True)))


def _link(context: Context, fault: dict[str, Any]) -> None:
    context.runner.shape(_running(fault), int(fault.get("rate_bit_s", 0)), float(fault.get("delay_s", 0)))


def _interrupt(context: Context, fault: dict[str, Any]) -> None:
    given = fault.get("notice_s")
    interruptions.interrupt(context, fault["instance_id"], None if given is None else float(given))


def _clear_block(context: Context, fault: dict[str, Any]) -> None:
    capacity_blocks.clear(context, fault["reservation_id"])


def _change_sets(_context: Context, fault: dict[str, Any]) -> None:
    found = tuple(Validation(**one) for one in fault.get("validations", ()))
    PLANTED.takes_s, PLANTED.validations = float(fault.get("takes_s", 0)), found


def _stall(_context: Context, fault: dict[str, Any]) -> None:
    fleet.current().stall(_running(fault), float(fault.get("for_s", fleet.STALL_S)))


def _end(context: Context, fault: dict[str, Any]) -> None:
    context.runner.signal(_running(fault), signal.SIGKILL, str(fault["command"]))


def _freeze(context: Context, fault: dict[str, Any]) -> None:
    context.runner.freeze(_running(fault), float(fault.get("for_s", AWAY_S)))


def _running(fault: dict[str, Any]) -> str:
    instance_id = fault["instance_id"]
    if fleet.current().instance(instance_id) is None:
        raise ValueError(f"no instance {instance_id} runs here")
    return instance_id


_FAULTS: dict[str, Callable[[Context, Any], None]] = {
    "capacity": _capacity,
    "vcpu_limit": _vcpu_limit,
    "address_limit": _address_limit,
    "vpc_limit": _vpc_limit,
    "boot_delay_s": _boot_delay,
    "fail_launch": _fail_launch,
    "kill": _kill,
    "partition": _partition,
    "link": _link,
    "interrupt": _interrupt,
    "clear_block": _clear_block,
    "end": _end,
    "change_sets": _change_sets,
    "stall": _stall,
    "freeze": _freeze,
}
