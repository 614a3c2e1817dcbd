"""AWS::EC2::Instance with a node of its own, what is attached to it, and AWS::EC2::KeyPair."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moto.ec2.utils import parse_user_data
from moto.iam.models import iam_backends

from localcloud.api import partitions
from localcloud.cloudformation.errors import ResourceFailed
from localcloud.cloudformation.resources.network import ec2, truth
from localcloud.cloudformation.resources.registry import Made, Request, all_or_nothing, resource
from localcloud.ec2 import fleet

# Property → moto's name, for what is passed on as it is.
_PASSED_ON = {
    "AvailabilityZone": "placement",
    "BlockDeviceMappings": "block_device_mappings",
    "InstanceInitiatedShutdownBehavior": "instance_initiated_shutdown_behavior",
    "KeyName": "key_name",
    "MetadataOptions": "metadata_options",
    "PrivateIpAddress": "private_ip",
    "SecurityGroupIds": "security_group_ids",
    "SubnetId": "subnet_id",
}
_ATTRIBUTES = "AvailabilityZone InstanceId PrivateDnsName PrivateIp PublicDnsName PublicIp VpcId"


def _terminate(request: Request, physical_id: str) -> bool | None:
    instance = fleet.current().instance(physical_id)
    if instance is None:
        return None
    instance.disable_api_termination = False
    fleet.current().when_it_is(physical_id, ("terminated",), lambda _state: request.settled(None))
    ec2(request).terminate_instances([physical_id])
    return True


@resource("AWS::EC2::Instance", _terminate, _ATTRIBUTES)
def _instance(request: Request) -> Made:
    properties, backend = request.properties, ec2(request)
    settings = {name: properties[key] for key, name in _PASSED_ON.items() if key in properties}
    _require_profile(request, str(properties.get("IamInstanceProfile", "")))
    reservation = backend.run_instances(
        properties.get("ImageId", ""),
        1,
        parse_user_data(properties.get("UserData")),
        list(properties.get("SecurityGroups") or []),
        instance_type=properties.get("InstanceType", "m1.small"),
        is_instance_type_default="InstanceType" not in properties,
        nics=[_interface(one) for one in properties.get("NetworkInterfaces") or []],
        launch_template=properties.get("LaunchTemplate") or {},
        tags={"instance": request.tag_map()},
        disable_api_termination=truth(properties.get("DisableApiTermination", False)),
        associate_public_ip=None,
        **settings,
    )
    (instance,) = reservation.instances
    with all_or_nothing(_terminate, request, instance.id):
        if profile := properties.get("IamInstanceProfile"):
            backend.associate_iam_instance_profile(instance.id, iam_instance_profile_name=profile)
    fleet.current().when_it_is(instance.id, ("running", "terminated"), lambda state: _settle(request, instance, state))
    return Made(instance.id, _attributes(instance), pending=True)


def _require_profile(request: Request, name: str) -> None:
    """Refuse an unknown instance profile before anything is launched, in EC2's words."""
    profiles = iam_backends[request.context.account][partitions.played()].instance_profiles.values()
    if name and all(one.name != name for one in list(profiles)):
        value = f"Value ({name}) for parameter iamInstanceProfile.name is invalid."
        raise ResourceFailed(f"{value} Invalid IAM Instance Profile name")


def _settle(request: Request, instance: Any, state: str) -> None:
    failed = (
        f"Instance {instance.id} failed to stabilize. Current state: {state}. Reason: {instance.state_reason.message}"
    )
    request.settled(None if state == "running" else failed)


def _interface(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return an interface as RunInstances takes it; templates write some names and numbers in another way."""
    renamed = {("Groups" if key == "GroupSet" else key): value for key, value in given.items()}
    if "AssociatePublicIpAddress" in renamed:
        renamed["AssociatePublicIpAddress"] = truth(renamed["AssociatePublicIpAddress"])
    return {**renamed, "DeviceIndex": int(given.get("DeviceIndex", 0)), "DeleteOnTermination": True}


def _attributes(instance: Any) -> dict[str, Any]:
    return {
        "AvailabilityZone": instance.placement.zone,
        "InstanceId": instance.id,
        "PrivateDnsName": instance.private_dns_name,
        "PrivateIp": instance.private_ip,
        "PublicDnsName": instance.public_dns_name or "",
        "PublicIp": instance.public_ip or "",
        "VpcId": instance.vpc_id,
    }


def _disassociate(request: Request, physical_id: str) -> None:
    backend = ec2(request)
    if any(address.association_id == physical_id for address in backend.addresses):
        backend.disassociate_address(association_id=physical_id)


@resource("AWS::EC2::EIPAssociation", _disassociate, "Id")
def _association(request: Request) -> Made:
    properties, backend = request.properties, ec2(request)
    instance = backend.get_instance(properties["InstanceId"]) if "InstanceId" in properties else None
    eni = instance.nics[0] if instance else backend.get_network_interface(properties["NetworkInterfaceId"])
    address = backend.associate_address(
        instance=instance, eni=eni, address=properties.get("EIP"), allocation_id=properties.get("AllocationId")
    )
    return Made(address.association_id, {"Id": address.association_id})


def _delete_key_pair(request: Request, physical_id: str) -> None:
    ec2(request).delete_key_pair(physical_id)


@resource("AWS::EC2::KeyPair", _delete_key_pair, "KeyFingerprint KeyPairId")
def _key_pair(request: Request) -> Made:
    properties = request.properties
    if "PublicKeyMaterial" not in properties:
        raise ResourceFailed("The local cloud imports key pairs only: PublicKeyMaterial is missing")
    name, material = properties["KeyName"], str(properties["PublicKeyMaterial"]).encode()
    pair = ec2(request).import_key_pair(name, material, request.tag_map())
    return Made(name, {"KeyFingerprint": pair.key_fingerprint, "KeyPairId": pair.id})
