"""Session Manager of the local cloud: which instances its agent connects to it, and connections to their ports.

The agent itself is not there: whether it could do its work decides (docs/aws-behaviour.md 2.55).
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

from moto.ec2.models.instances import Instance

from localcloud.api import partitions
from localcloud.context import Context
from localcloud.ec2 import fleet
from localcloud.iam import credentials, middleware, usage
from localcloud.iam.policy import Ask, Decision
from localcloud.network.reach import Way

Ways = Callable[[str, str, str], Way | None]
_SERVICES = ("ssm", "ssmmessages")
_ACTIONS = (
    "ssm:UpdateInstanceInformation",
    "ssmmessages:CreateControlChannel",
    "ssmmessages:CreateDataChannel",
    "ssmmessages:OpenControlChannel",
    "ssmmessages:OpenDataChannel",
)


class Sessions:
    """Opens sessions; `way` returns the way from a node (VPC, address) to a service, or None."""

    def __init__(self, context: Context, way: Ways) -> None:
        self._context, self._way = context, way

    def connect(self, instance_id: str, port: int, timeout_s: float) -> socket.socket:
        """Return a connection from an instance to its own port. Raises LookupError if its agent is not connected."""
        instance = next((one for one in fleet.current().live() if one.id == instance_id), None)
        if instance is None or instance.state != "running":
            raise LookupError(f"{instance_id} belongs to no running instance of the local cloud")
        if lacking := list(self._lacking(instance)):
            raise LookupError(f"TargetNotConnected: {instance_id} is not connected ({'; '.join(lacking)})")
        return self._context.runner.connect_inside(instance_id, port, timeout_s)

    def _lacking(self, instance: Instance) -> Iterator[str]:
        """Yield what keeps the agent of an instance from Session Manager."""
        for service in _SERVICES:
            if self._way(instance.vpc_id or "", instance.private_ip or "", service) is None:
                yield f"it has no way to {service}"
        region = instance.ec2_backend.region_name
        arn = f"{partitions.arn()}:ec2:{region}:{self._context.account}:instance/{instance.id}"
        for action in _ACTIONS:
            if not self._may(instance, Ask(action, arn if action.startswith("ssm:") else "*")):
                yield f"its role may not {action}"

    def _may(self, instance: Instance, ask: Ask) -> bool:
        role = credentials.instance_role(instance)
        if role is None or middleware.rights_of(self._context, role.name).decide(ask) is not Decision.ALLOWED:
            return False
        usage.note(self._context, role.name, ask)
        return True
