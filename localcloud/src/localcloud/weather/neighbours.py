"""What others put into a VPC in bad weather, so that it can't be deleted (docs/aws-behaviour.md 11.14).

GuardDuty's runtime monitoring makes an endpoint, with a network interface and a security group of its own. A person
makes an interface, or a security group.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from moto.ec2.models import EC2Backend
from moto.ec2.models.instances import Instance

from localcloud.context import Context

_PROBABILITY = 0.5
_LATEST_S = 60.0
_MANAGED = {"GuardDutyManaged": "true"}

Act = Callable[[EC2Backend, str, str], str]


class Neighbours:
    """Decides once for each VPC, when its first instance runs, whether there is another instance, and which."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._seen: set[str] = set()

    def welcome(self, instance: Instance) -> None:
        """Let a neighbour act some time after the VPC's first instance started."""
        with self._lock:
            if instance.vpc_id in self._seen:
                return
            self._seen.add(instance.vpc_id or "")
        draw = self._context.weather.draw("neighbours")
        if draw and draw.happens(_PROBABILITY):
            act = draw.choice((_guard_duty, _guard_duty, _make_interface, _make_group))
            self._context.clock.call_later(draw.seconds(0, _LATEST_S), self._let, act, instance)

    def _let(self, act: Act, instance: Instance) -> None:
        made = act(instance.ec2_backend, instance.vpc_id or "", instance.subnet_id or "")
        self._context.weather.struck("neighbours", f"{made} was made in {instance.vpc_id}")


def _guard_duty(backend: EC2Backend, vpc_id: str, subnet_id: str) -> str:
    name, service = f"GuardDutyManagedSecurityGroup-{vpc_id}", f"com.amazonaws.{backend.region_name}.guardduty-data"
    group = backend.create_security_group(name, "Managed by GuardDuty", vpc_id, dict(_MANAGED))
    where = {"security_group_ids": [group.id], "private_dns_enabled": False}
    endpoint = backend.create_vpc_endpoint(
        vpc_id, service, "Interface", None, [], [subnet_id], tags=dict(_MANAGED), **where
    )
    return f"GuardDuty's endpoint {endpoint.id}"


def _make_interface(backend: EC2Backend, _vpc_id: str, subnet_id: str) -> str:
    address = str(backend.get_subnet(subnet_id).cidr.broadcast_address - 10)
    return f"interface {backend.create_network_interface(subnet_id, address, description='by hand').id}"


def _make_group(backend: EC2Backend, vpc_id: str, _subnet_id: str) -> str:
    return f"security group {backend.create_security_group('made-by-hand', 'by hand', vpc_id).id}"
