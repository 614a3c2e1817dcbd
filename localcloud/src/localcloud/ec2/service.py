"""EC2 of the local cloud: backs moto's instances with nodes, and finds the instance at an address."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError, InvalidInstanceIdError
from moto.ec2.models import EC2Backend, ec2_backends
from moto.ec2.models.instances import Instance, InstanceState, Reservation
from moto.ec2.models.subnets import Subnet
from moto.ec2.responses.elastic_block_store import ElasticBlockStore
from moto.ec2.responses.general import General
from moto.ec2.responses.instances import InstanceResponse

from localcloud.api import partitions
from localcloud.context import Context
from localcloud.ec2 import fleet, interruptions, placement, reserved, zones
from localcloud.ec2.imds import InstanceFacts
from localcloud.iam import credentials
from localcloud.network import corrections, reading
from localcloud.network.records import Network
from localcloud.weather import organisation
from localcloud.weather.newcomers import Newcomers

# EC2 keeps the last 64 KB (API reference, GetConsoleOutput).
_CONSOLE_BYTES = 64 * 1024
_answer_run_instances: Any = InstanceResponse.run_instances

PATCHED = (
    "moto.ec2.models.EC2Backend.run_instances",
    "moto.ec2.models.EC2Backend.terminate_instances",
    "moto.ec2.models.EC2Backend.reboot_instances",
    "moto.ec2.models.EC2Backend.stop_instances",
    "moto.ec2.models.EC2Backend.start_instances",
    "moto.ec2.models.EC2Backend.delete_vpc_endpoints",
    "moto.ec2.models.EC2Backend.describe_spot_price_history",
    "moto.ec2.models.EC2Backend.get_instance",
    "moto.ec2.responses.general.General.get_console_output",
    "moto.ec2.responses.instances.InstanceResponse.run_instances",
    "moto.ec2.responses.instances.InstanceResponse._parse_block_device_mapping",
    "moto.ec2.models.availability_zones_and_regions.RegionsAndZonesBackend.zones",
    "moto.ec2.models.subnets.Subnet.get_available_subnet_ip",
    *corrections.PATCHED,
)


def install(context: Context) -> None:
    """Route every launch and termination through the fleet, whichever API requests it."""
    fleet.install(context)
    zones.install()
    corrections.install()
    EC2Backend.run_instances = _run_instances
    EC2Backend.terminate_instances = _terminate_instances
    EC2Backend.reboot_instances = _reboot_instances
    EC2Backend.stop_instances = _stop_instances
    EC2Backend.start_instances = _start_instances
    EC2Backend.delete_vpc_endpoints = _delete_vpc_endpoints
    # moto's prices are of its own making: here no market has any.
    EC2Backend.describe_spot_price_history = _no_prices
    EC2Backend.get_instance = _get_instance
    # moto has no answer to it.
    setattr(ElasticBlockStore, "get_ebs_default_kms_key_id", _disk_key(context))  # noqa: B010
    setattr(General, "get_console_output", _console_output(context))  # noqa: B010 (pyright knows the original)
    Subnet.get_available_subnet_ip = placement.next_address
    InstanceResponse._parse_block_device_mapping = _disks
    setattr(InstanceResponse, "run_instances", _judged(context, reserved.asking(_answer_run_instances)))  # noqa: B010


def _judged(context: Context, run: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return RunInstances as the organisation allows it."""

    def run_instances(self: Any) -> Any:
        organisation.check_run(context, self.region)
        return run(self)

    return run_instances


def _disks(self: InstanceResponse) -> list[dict[str, Any]]:
    """Return the disks as they were asked for; moto refuses a root disk without a size, which is the image's."""
    return placement.check_sizes(self._get_param("BlockDeviceMappings", []))


def _disk_key(context: Context) -> Callable[[Any], ActionResult]:
    """Answer GetEbsDefaultKmsKeyId: AWS's key, or the company's where Auto Scaling may not use it (11.12)."""
    own = f"{partitions.arn()}:kms:us-east-1:{context.account}:key/11111111-2222-3333-4444-555555555555"

    def answer(_response: Any) -> ActionResult:
        return ActionResult({"KmsKeyId": own if organisation.forbids_disk(context) else "alias/aws/ebs"})

    return answer


def _no_prices(
    self: EC2Backend,  # noqa: ARG001
    instance_types: list[str] | None = None,  # noqa: ARG001
    filters: Any = None,  # noqa: ARG001
) -> list[dict[str, str]]:
    return []


def _get_instance(self: EC2Backend, instance_id: str) -> Instance:
    """Find an instance. moto copies all reservations for each look, and looks five times at each launch."""
    live = fleet.current().instance(instance_id)
    if live is not None and live.ec2_backend is self:
        return live
    # One that is being launched is the last.
    every = (one for reservation in reversed(list(self.reservations.values())) for one in reservation.instances)
    found = next((one for one in every if one.id == instance_id), None)
    if found is None:
        raise InvalidInstanceIdError(instance_id)
    return found


def vpcs_of_users() -> list[str]:
    """Return all VPCs but the default ones, which every region has, and those that another account shares."""
    regions = [region for account in list(ec2_backends.values()) for region in list(account.values())]
    found = (vpc for region in regions for vpc in list(region.vpcs.values()))
    return [vpc.id for vpc in found if not vpc.is_default and vpc.owner_id == vpc.ec2_backend.account_id]


def lookup(context: Context) -> Callable[[str, str], InstanceFacts | None]:
    """Return the metadata service's lookup: (VPC, address) → what the instance there may know of itself, or None."""

    newcomers = Newcomers(context.weather, context.clock)

    def find(vpc_id: str, address: str) -> InstanceFacts | None:
        for instance in fleet.current().live():
            if instance.private_ip == address and instance.vpc_id == vpc_id:
                return _facts(context, instance, newcomers)
        return None

    return find


def network(context: Context) -> Callable[[str], Network | None]:
    """Return the guard's reader: VPC → its network with its instances, or None when it is gone."""
    return lambda vpc_id: reading.network(context.account, vpc_id, fleet.current().live())


def locate(host: str) -> tuple[str, str]:
    """Find a running instance for the dialer, by its id, its public name, or an address → (VPC, private address).

    Raises LookupError, with a message for the user, when `host` belongs to no running instance or to several.
    """
    found = {(i.vpc_id or "", i.private_ip or "") for i in fleet.current().live() if _answers_to(i, host)}
    if not found:
        raise LookupError(f"{host} belongs to no running instance of the local cloud")
    if len(found) > 1:
        raise LookupError(f"{host} is in use in {len(found)} VPCs of the local cloud; use the instance id instead")
    return found.pop()


def _answers_to(instance: Instance, host: str) -> bool:
    names = (instance.id, instance.public_ip, instance.public_dns_name, instance.private_ip)
    return instance.state == "running" and host in filter(None, names)


def _facts(context: Context, instance: Instance, newcomers: Newcomers) -> InstanceFacts:
    role = None if newcomers.lacks_role(instance.id) else credentials.instance_role(instance)
    return InstanceFacts(
        instance_id=instance.id,
        instance_type=instance.instance_type,
        address=instance.private_ip or "",
        hostname=placement.hostname(instance.private_ip or ""),
        zone=instance.placement.zone or "",
        region=instance.ec2_backend.region_name,
        image_id=instance.image_id,
        public_address=instance.public_ip,
        public_name=instance.public_dns_name or "",
        role_name=role.name if role else None,
        credentials=lambda: _credentials(context, instance, newcomers),
        must_wait=lambda: newcomers.must_wait(instance.id),
        tags=_metadata_tags(instance),
        user_data=placement.user_data_bytes(instance),
        architecture=instance.architecture,
        key_pair=placement.key_pair(instance),
        domain=partitions.domain(instance.ec2_backend.region_name),
        life_cycle=instance.lifecycle or "on-demand",
        is_served=instance.metadata_options.http_endpoint != "disabled",
        taken_at=interruptions.taken_at(instance.id),
    )


def _credentials(context: Context, instance: Instance, newcomers: Newcomers) -> dict[str, str]:
    """Return the credentials, or AWS's document with the reason why the instance gets none."""
    if newcomers.lacks_credentials(instance.id):
        return _no_credentials("Please see documentation at https://docs.aws.amazon.com/IAM/latest/UserGuide/.")
    try:
        return credentials.for_instance(context, instance)
    except credentials.AssumeRoleError as refusal:
        return _no_credentials(str(refusal))


def _no_credentials(why: str) -> dict[str, str]:
    return {"Code": "AssumeRoleUnauthorizedAccess", "Message": f"EC2 cannot assume the role. {why}"}


def _metadata_tags(instance: Instance) -> dict[str, str]:
    """Return the tags an instance may read: none unless its metadata options allow it (docs/aws-behaviour.md 2.3)."""
    if instance.metadata_options.instance_metadata_tags != "enabled":
        return {}
    return {tag["key"]: tag["value"] for tag in instance.get_tags()}


def _run_instances(
    self: EC2Backend, image_id: str, count: int, user_data: Any, security_group_names: list[str], **kwargs: Any
) -> Reservation:
    request = placement.Request.build(self, image_id, count, user_data, security_group_names, kwargs)
    return fleet.current().launch(self, request)


def _terminate_instances(self: EC2Backend, instance_ids: list[str]) -> list[tuple[Instance, InstanceState]]:
    instances = self.get_multi_instances_by_id(instance_ids)
    for instance in instances:
        if instance.disable_api_termination:
            raise EC2ClientError("OperationNotPermitted", _PROTECTED.format(instance.id))
    code = "Client.UserInitiatedShutdown"
    return _after(instances, lambda one: fleet.current().end(one, code, f"{code}: User initiated shutdown"))


_PROTECTED = (
    "The instance '{}' may not be terminated. Modify its 'disableApiTermination' instance attribute and try again."
)


def _reboot_instances(self: EC2Backend, instance_ids: list[str]) -> list[Instance]:
    """Request reboots; instances stay "running", and others are ignored (docs/aws-behaviour.md 2.22)."""
    instances = self.get_multi_instances_by_id(instance_ids)
    for instance in instances:
        fleet.current().reboot(instance)
    return instances


def _stop_instances(self: EC2Backend, instance_ids: list[str]) -> list[tuple[Instance, InstanceState]]:
    """Stop instances, all or none (docs/aws-behaviour.md 2.75)."""
    instances = self.get_multi_instances_by_id(instance_ids)
    for instance in instances:
        if instance.state == "pending":
            raise EC2ClientError("IncorrectInstanceState", _NEVER_RUN.format(instance.id))
        _require_state(instance, "stopped", ("running", "stopping", "stopped"))
        if instance.lifecycle == "spot":
            raise EC2ClientError("UnsupportedOperation", _ONE_TIME.format(instance.id))
        if instance.disable_api_stop:
            raise EC2ClientError("OperationNotPermitted", _STAYS.format(instance.id))
    return _after(instances, fleet.current().stop)


def _start_instances(self: EC2Backend, instance_ids: list[str]) -> list[tuple[Instance, InstanceState]]:
    """Start stopped instances with the disks and private addresses that they had (docs/aws-behaviour.md 2.75)."""
    instances = self.get_multi_instances_by_id(instance_ids)
    for instance in instances:
        _require_state(instance, "started", ("stopped", "pending", "running"))
    return _after(instances, fleet.current().start)


def _after(instances: list[Instance], change: Callable[[Instance], None]) -> list[tuple[Instance, InstanceState]]:
    """Change instances; return each with the state that it had."""
    before = [(instance, InstanceState(instance.state, instance.state_code)) for instance in instances]
    for instance in instances:
        change(instance)
    return before


def _require_state(instance: Instance, change: str, states: tuple[str, ...]) -> None:
    if instance.state not in states:
        this = "This" if change == "stopped" else "The"
        text = f"{this} instance '{instance.id}' is not in a state from which it can be {change}."
        raise EC2ClientError("IncorrectInstanceState", text)


_ONE_TIME = (
    "You can't stop the Spot Instance '{}' because it is associated with a one-time Spot Instance request. You can only"
    " stop Spot Instances associated with persistent Spot Instance requests."
)
_NEVER_RUN = "Instance '{}' cannot be stopped as it has never reached the 'running' state."
_STAYS = "The instance '{}' may not be stopped. Modify its 'disableApiStop' instance attribute and try again."


def _console_output(context: Context) -> Callable[[General], ActionResult]:
    """Answer with the end of what the instance's console has shown; moto has an invented one for all instances."""

    def answer(self: General) -> ActionResult:
        instance = self.ec2_backend.get_instance(self._get_param("InstanceId"))
        console = next((node.console for node in context.runner.nodes() if node.instance_id == instance.id), None)
        shown = console.read_bytes()[-_CONSOLE_BYTES:] if console and console.exists() else b""
        output = base64.b64encode(shown).decode()
        return ActionResult({"InstanceId": instance.id, "Timestamp": context.clock.now(), "Output": output})

    return answer


_mark_deleted: Any = EC2Backend.delete_vpc_endpoints


def _delete_vpc_endpoints(self: EC2Backend, vpce_ids: list[str] | None = None) -> None:
    """Delete endpoints with their routes and interfaces; moto only marks the endpoints as deleted."""
    for endpoint in [self.vpc_end_points[one] for one in vpce_ids or () if one in self.vpc_end_points]:
        for interface in [self.enis[one] for one in endpoint.network_interface_ids or () if one in self.enis]:
            interface.subnet.del_subnet_ip(interface.private_ip_address)
    _mark_deleted(self, vpce_ids)
    for endpoint_id in vpce_ids or []:
        self.vpc_end_points.pop(endpoint_id, None)
