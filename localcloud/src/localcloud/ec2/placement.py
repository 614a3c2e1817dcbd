"""Turns a launch request into a machine: launch template, zone, address and size, and EC2's refusals of them."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from moto.core.types import Base64EncodedString
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models import EC2Backend
from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS, INSTANCE_TYPES
from moto.ec2.models.instances import Instance
from moto.ec2.models.subnets import Subnet
from moto.ec2.utils import filter_iam_instance_profiles
from moto.efs.models import efs_backends
from moto.iam.exceptions import IAMException
from moto.iam.models import InstanceProfile

from localcloud.api import parameters, partitions
from localcloud.api.moto_setup import AMAZON_IMAGES, FULL_IMAGES
from localcloud.ec2 import placement_groups, reserved, zones
from localcloud.iam import policy
from localcloud.iam.errors import NOT_SERVED
from localcloud.nodes.machine import Machine
from localcloud.storage import fsx

USER_DATA_LIMIT_BYTES = 16_384
METADATA_DEFAULTS: dict[str, Any] = {}
"""The account's metadata options, for what a launch leaves open (docs/aws-behaviour.md 2.3)."""
_PARAMETER = "resolve:ssm:"
TLS = "+tls"
IMAGE_GIB = 8
"""The size of the images' root disks."""
ROOTS = ("/dev/sda1", "/dev/xvda")
_SPEEDS = {"Iops": "iops", "Throughput": "throughput"}
Mapping = dict[str, Any]


@dataclass
class Request:
    """One RunInstances call, merged with its launch template. `kwargs` are moto's."""

    backend: EC2Backend
    image_id: str
    count: int
    user_data: Base64EncodedString | None
    group_names: list[str]
    kwargs: dict[str, Any]
    template: dict[str, Any]
    wish: reserved.Wish

    @classmethod
    def build(
        cls, backend: EC2Backend, image_id: str, count: int, user_data: Any, group_names: list[str], kwargs: Any
    ) -> Request:
        """Merge in what moto ignores of the launch template: interfaces, disks, metadata options, shutdown behavior."""
        template = (
            dict(backend._get_template_from_args(kwargs["launch_template"]).data)
            if kwargs.get("launch_template")
            else {}
        )
        merged = dict(kwargs)
        if not kwargs.get("instance_type") or kwargs.get("is_instance_type_default"):
            merged["instance_type"] = template.get("InstanceType", "m1.small")
        merged["is_instance_type_default"] = False
        merged["nics"] = kwargs.get("nics") or _interfaces(template, kwargs.get("subnet_id"))
        image_id = _resolved(backend, image_id or template.get("ImageId", ""))
        mappings = kwargs.get("block_device_mappings") or template.get("BlockDeviceMappings")
        merged["block_device_mappings"] = with_root(mappings, backend.amis.get(image_id))
        options = kwargs.get("metadata_options") or template.get("MetadataOptions", {})
        merged["metadata_options"] = {**METADATA_DEFAULTS, **options}
        merged["key_name"] = kwargs.get("key_name") or template.get("KeyName")
        wish = reserved.wish(merged.pop("capacity_reservation", None), template, _market(kwargs))
        # moto takes any market for the spot market.
        merged["instance_market_options"] = {"MarketType": wish.market} if wish.market == "spot" else None
        merged.setdefault("region_name", backend.region_name)
        _choose_place(backend, merged, group_names or template.get("SecurityGroups"), template)
        behaviour = template.get("InstanceInitiatedShutdownBehavior")
        merged["instance_initiated_shutdown_behavior"] = kwargs.get("instance_initiated_shutdown_behavior") or behaviour
        encoded = _encoded(user_data or template.get("UserData"))
        return cls(backend, image_id, count, encoded, group_names, merged, template, wish)

    @property
    def instance_type(self) -> str:
        return self.kwargs["instance_type"]

    @property
    def subnet_id(self) -> str | None:
        """The subnet of the request, or of its first interface that has one."""
        return self.kwargs.get("subnet_id") or next(
            (n["SubnetId"] for n in self.kwargs["nics"] if "SubnetId" in n), None
        )

    @property
    def group_ids(self) -> list[str]:
        """The security groups of the request and of its interfaces, or of the launch template."""
        own = [group for interface in self.kwargs["nics"] for group in interface.get("Groups") or []]
        return own or self.kwargs.get("security_group_ids") or self.template.get("SecurityGroupIds") or []

    @property
    def zone(self) -> str:
        """The subnet's zone, else the requested zone, else the region's first."""
        subnet_id = self.subnet_id
        if subnet_id:
            return self.backend.get_subnet(subnet_id).availability_zone
        return self.kwargs.get("placement") or f"{self.backend.region_name}a"

    @property
    def placement_group(self) -> str:
        """The placement group of the launch template, or ""."""
        return (self.template.get("Placement") or {}).get("GroupName", "")

    def zones_with_type(self) -> list[str]:
        """Return the region's ordinary zones that offer the type: us-east-1a, but not us-east-1-atl-2a."""
        region = self.backend.region_name
        return [zone for zone in zones_offering(self.instance_type, region) if zone[:-1] == region]

    def check(self) -> None:
        """Raise EC2ClientError for what EC2 refuses before it looks for capacity."""
        if not self.image_id:
            raise EC2ClientError("MissingParameter", "The request must contain the parameter ImageId")
        if self.zone not in zones.names(self.backend.region_name):
            raise EC2ClientError("InvalidParameterValue", f"Invalid availability zone: [{self.zone}]")
        _check_type(self.instance_type, self.backend.region_name, self.zone)
        _check_interfaces(self.kwargs["nics"], self.template)
        _check_adapters(self.instance_type, self.kwargs["nics"])
        _check_key_pair(self.backend, self.kwargs["key_name"])
        check(self.kwargs["block_device_mappings"])
        _check_architecture(self.backend, self.image_id, self.instance_type)
        self._check_groups()
        if self.placement_group:
            reserved.refuse_group(self.wish)
            placement_groups.require(self.backend.region_name, self.placement_group, self.instance_type)
        self._profile()
        raw = base64.b64decode(str(self.user_data)) if self.user_data else b""
        if len(raw) > USER_DATA_LIMIT_BYTES:
            # docs/aws-behaviour.md 2.1: the limit is on the raw bytes, before base64.
            raise EC2ClientError("InvalidParameterValue", f"User data is limited to {USER_DATA_LIMIT_BYTES} bytes")

    def _check_groups(self) -> None:
        """Refuse groups of another VPC than the subnet's (EC2's error codes, InvalidParameter)."""
        subnet_id = self.subnet_id
        if not subnet_id:
            return
        vpc_id = self.backend.get_subnet(subnet_id).vpc_id
        for group_id in self.group_ids:
            group = self.backend.get_security_group_from_id(group_id)
            if group is not None and group.vpc_id != vpc_id:
                text = f"Security group {group_id} and subnet {subnet_id} belong to different networks."
                raise EC2ClientError("InvalidParameter", text)

    def complete(self, instance: Instance) -> None:
        """Give the instance what moto ignores of a launch template: its profile, placement group and market."""
        if self.wish.market == reserved.BLOCK:
            instance.lifecycle = reserved.BLOCK
        set_speed(instance, self.kwargs["block_device_mappings"])
        if self.placement_group:
            placement_groups.put(instance, self.placement_group)
        if profile := self._profile():
            self.backend.associate_iam_instance_profile(instance.id, iam_instance_profile_arn=profile.arn)

    def _profile(self) -> InstanceProfile | None:
        profile = self.template.get("IamInstanceProfile")
        if not profile or self.kwargs.get("iam_instance_profile_name") or self.kwargs.get("iam_instance_profile_arn"):
            return None
        return profile_of(self.backend.account_id, self.backend.partition, profile.get("Arn"), profile.get("Name"))


def profile_of(account: str, partition: str, arn: str | None, name: str | None) -> InstanceProfile:
    """Return an instance profile. Raises EC2ClientError for an unknown one, where moto has IAM's error."""
    try:
        return filter_iam_instance_profiles(account, partition, arn, name)
    except IAMException:
        which = "name" if name else "ARN"
        text = f"Value ({name or arn}) for parameter iamInstanceProfile.{which.lower()} is invalid."
        raise EC2ClientError("InvalidParameterValue", f"{text} Invalid IAM Instance Profile {which}") from None


def _choose_place(backend: Any, merged: dict[str, Any], names: Any, template: dict[str, Any]) -> None:
    """Fill in what EC2 chooses: a subnet of the default VPC, and the VPC's default security group."""
    subnet_id = merged.get("subnet_id") or next((n["SubnetId"] for n in merged["nics"] if n.get("SubnetId")), None)
    if subnet_id is None:
        zone = merged.get("placement") or f"{backend.region_name}a"
        chosen = backend.get_default_subnets().get(zone)
        subnet_id = chosen.id if chosen else None
        _put_there(merged, subnet_id)
    groups = merged.get("security_group_ids") or template.get("SecurityGroupIds") or names or merged["nics"]
    if subnet_id and not groups:
        own = backend.groups[backend.get_subnet(subnet_id).vpc_id].values()
        merged["security_group_ids"] = [group.id for group in own if group.is_default]


def _put_there(merged: dict[str, Any], subnet_id: str | None) -> None:
    if subnet_id and merged["nics"]:
        merged["nics"][0]["SubnetId"] = subnet_id
    elif subnet_id:
        merged["subnet_id"] = subnet_id


def machine(instance: Instance) -> Machine:
    """Describe the machine that the node runner boots for this instance."""
    vpc_id, address = instance.vpc_id or "", instance.private_ip or ""
    zone, region = instance.placement.zone or "", instance.ec2_backend.region_name
    return Machine(
        instance_id=instance.id,
        vpc_id=vpc_id,
        vpc_cidr=instance.ec2_backend.get_vpc(vpc_id).cidr_block,
        address=address,
        hostname=hostname(address),
        instance_type=instance.instance_type,
        vcpus=vcpus(instance.instance_type),
        memory_mib=memory_mib(instance.instance_type),
        user_data=user_data_bytes(instance),
        domain=f"{region}.{partitions.domain(region)}",
        zone=zone,
        file_systems=_file_systems(instance.owner_id, region, vpc_id, zone),
        image=next((name for name, image in FULL_IMAGES.items() if image == instance.image_id), ""),
        local_disks=bool(INSTANCE_TYPES.get(instance.instance_type, {}).get("InstanceStorageInfo")),
        admin_key=key_pair(instance)[1],
        administrator="ec2-user" if instance.image_id in AMAZON_IMAGES else "ubuntu",
    )


def key_pair(instance: Instance) -> tuple[str, str]:
    """Return the name and the public key of the instance's key pair; ("", "") without one."""
    found = instance.ec2_backend.key_pairs.get(instance.key_name or "")
    return (found.key_name, found.public_key.strip()) if found else ("", "")


def _resolved(backend: EC2Backend, image_id: str) -> str:
    """Return the image that a parameter of Systems Manager names, as resolve:ssm:NAME or NAME:VERSION (2.73)."""
    if not image_id.startswith(_PARAMETER):
        return image_id
    name = image_id.removeprefix(_PARAMETER).partition(":")[0]
    try:
        return parameters.value(backend.account_id, backend.region_name, name)
    except KeyError:
        if reason := parameters.not_served(name):
            raise EC2ClientError(NOT_SERVED, reason) from None
        raise EC2ClientError("InvalidParameterValue", f"Parameter {name} not found.") from None


def hostname(address: str) -> str:
    """Return AWS's name for a private address, such as ip-10-0-1-12."""
    return "ip-" + address.replace(".", "-")


def vcpus(instance_type: str) -> int:
    """Return the number of vCPUs of a type; 1 if moto has no data on it."""
    return int(INSTANCE_TYPES.get(instance_type, {}).get("VCpuInfo", {}).get("DefaultVCpus", 1))


def memory_mib(instance_type: str) -> int:
    """Return the memory of a type; 1 GiB if moto has no data on it."""
    return int(INSTANCE_TYPES.get(instance_type, {}).get("MemoryInfo", {}).get("SizeInMiB", 1024))


def gpu(instance_type: str) -> str:
    """Return the name of a type's NVIDIA GPUs, such as "NVIDIA V100"; "" if it has none."""
    found = INSTANCE_TYPES.get(instance_type, {}).get("GpuInfo", {}).get("Gpus", [])
    return next((f"NVIDIA {one['Name']}" for one in found if one["Manufacturer"] == "NVIDIA"), "")


def user_data_bytes(instance: Instance) -> bytes:
    """Return the instance's user data, decoded."""
    return base64.b64decode(str(instance.user_data)) if instance.user_data else b""


def next_address(self: Subnet, instance: Instance) -> str:
    """Take the next unused address, or else a released one: as on AWS, a replacement rarely gets the same address."""
    for host in self._subnet_ip_generator:
        if str(host) not in self._subnet_ips:
            address = str(host)
            break
    else:
        address = _released(self)
    self._subnet_ips[address] = instance
    return address


def _released(subnet: Subnet) -> str:
    if not subnet._unused_ips:
        raise EC2ClientError(
            "InsufficientFreeAddressesInSubnet",
            f"There are not enough free addresses in subnet '{subnet.id}' to satisfy the requested number of"
            " instances.",
        )
    return subnet._unused_ips.pop()


def _encoded(user_data: Any) -> Base64EncodedString | None:
    if user_data is None or isinstance(user_data, Base64EncodedString):
        return user_data
    return Base64EncodedString(str(user_data))


def _market(kwargs: dict[str, Any]) -> str:
    """Return the market of a request, which moto passes on by its name or with all its options; "" for none."""
    options = kwargs.get("instance_market_options") or ""
    return options if isinstance(options, str) else options.get("MarketType", "")


def _interfaces(template: dict[str, Any], subnet_id: str | None) -> list[dict[str, Any]]:
    interfaces = [dict(interface) for interface in template.get("NetworkInterfaces", [])]
    for interface in interfaces:
        if subnet_id:
            interface.setdefault("SubnetId", subnet_id)
        interface.setdefault("DeviceIndex", 0)
        interface.setdefault("DeleteOnTermination", True)
    return interfaces


def addressed(interfaces: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the interfaces of the first card that have an address: a node has no others, since there is no fabric."""
    return [one for one in interfaces if not one.get("NetworkCardIndex") and one.get("InterfaceType") != "efa-only"]


def _check_adapters(instance_type: str, interfaces: list[dict[str, Any]]) -> None:
    # docs/aws-behaviour.md 2.5, 2.36
    network = INSTANCE_TYPES.get(instance_type, {}).get("NetworkInfo", {})
    most = network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0)
    wanted = sum(str(one.get("InterfaceType", "")).startswith("efa") for one in interfaces)
    if wanted and not most:
        raise EC2ClientError("UnsupportedOperation", f"EFA interfaces are not supported on {instance_type}")
    if wanted > most:
        raise EC2ClientError(
            "AttachmentLimitExceeded",
            f"EFA interface count exceeds the limit for {instance_type}. The maximum is {most}.",
        )


def _check_interfaces(interfaces: list[dict[str, Any]], template: dict[str, Any]) -> None:
    if interfaces and template.get("SecurityGroupIds"):
        # docs/aws-behaviour.md 2.4
        raise EC2ClientError(
            "InvalidParameterCombination",
            "Network interfaces and an instance-level security groups may not be specified on the same request",
        )
    if len(interfaces) > 1 and any("AssociatePublicIpAddress" in interface for interface in interfaces):
        # docs/aws-behaviour.md 2.9
        raise EC2ClientError(
            "InvalidParameterCombination",
            "The associatePublicIPAddress parameter cannot be specified when launching with multiple network"
            " interfaces",
        )


def _check_key_pair(backend: Any, name: str | None) -> None:
    if name and name not in backend.key_pairs:
        # docs/aws-behaviour.md 2.33
        raise EC2ClientError("InvalidKeyPair.NotFound", f"The key pair '{name}' does not exist")


def _check_architecture(backend: Any, image_id: str, instance_type: str) -> None:
    image = backend.amis.get(image_id)
    known = INSTANCE_TYPES.get(instance_type, {}).get("ProcessorInfo", {}).get("SupportedArchitectures", [])
    if image is not None and known and image.architecture not in known:
        raise EC2ClientError(
            "InvalidParameterValue",
            f"The architecture '{','.join(known)}' of the specified instance type does not match the architecture"
            f" '{image.architecture}' of the specified AMI. Specify an instance type and an AMI that have matching"
            " architectures, and try again.",
        )


def _check_type(instance_type: str, region: str, zone: str) -> None:
    if instance_type not in INSTANCE_TYPES:
        raise EC2ClientError("InvalidParameterValue", f"Invalid value '{instance_type}' for InstanceType.")
    offered = zones_offering(instance_type, region)
    if zone not in offered and _has_offerings(region):
        # docs/aws-behaviour.md 2.20
        raise EC2ClientError(
            "Unsupported",
            f"Your requested instance type ({instance_type}) is not supported in your requested Availability Zone"
            f" ({zone}). Please retry your request by not specifying an Availability Zone or choosing"
            f" {', '.join(offered)}.",
        )


def _has_offerings(region: str) -> bool:
    return bool(INSTANCE_TYPE_OFFERINGS.get("availability-zone", {}).get(region))


@lru_cache(maxsize=256)
def zones_offering(instance_type: str, region: str) -> tuple[str, ...]:
    """Return the zones of a region that offer a type."""
    offerings = INSTANCE_TYPE_OFFERINGS.get("availability-zone", {}).get(region, [])
    return tuple(sorted(row["Location"] for row in offerings if row["InstanceType"] == instance_type))


def _file_systems(account: str, region: str, vpc_id: str, zone: str) -> dict[str, str]:
    """Return the file systems with a mount target in this zone, and its address; Lustre's have "@" and a mount name.

    Behind the address of one whose policy lets nobody mount it without TLS stands "+tls".
    Only in the mount target's zone its name resolves (docs/aws-behaviour.md 4.5).
    """
    targets = list(efs_backends[account][region].mount_targets_by_id.values())
    there = [t for t in targets if t.vpc_id == vpc_id and t.availability_zone_name == zone]
    lustre = {one.file_system_id: f"{one.interface.address}@{one.mount_name}" for one in fsx.in_vpc(vpc_id)}
    known = efs_backends[account][region].file_systems_by_id
    efs = {t.file_system_id: t.ip_address + (TLS if _needs_tls(known.get(t.file_system_id)) else "") for t in there}
    return efs | lustre


def _needs_tls(file_system: Any) -> bool:
    """Whether a file system's policy denies a mount without TLS, or does not allow it (docs/aws-behaviour.md 4.23)."""
    document = file_system.file_system_policy if file_system else None
    if not document:
        return False
    keys = {"aws:securetransport": ["false"], "elasticfilesystem:accessedviamounttarget": ["true"]}
    statements = policy.statements_of(json.loads(document) if isinstance(document, str) else document)
    ask = policy.Ask("elasticfilesystem:ClientMount", file_system.file_system_arn, keys, principals=("*",))
    return policy.decide(statements, ask) is not policy.Decision.ALLOWED


def with_root(mappings: Iterable[Mapping] | None, image: Any) -> list[Mapping]:
    """Return the disks of a launch, with the image's root disk where the request does not name it."""
    given = list(mappings or [])
    if image and all(one.get("DeviceName") not in ROOTS for one in given):
        given = [{"DeviceName": image.root_device_name, "Ebs": {}}, *given]
    return filled(given)


def check_sizes(mappings: list[Mapping]) -> list[Mapping]:
    """Return the disks of a request. Raises EC2ClientError for one without a size that is not the image's root disk."""
    for one in mappings:
        if one.get("DeviceName") not in ROOTS and not {"VolumeSize", "SnapshotId"} & one.get("Ebs", {}).keys():
            raise EC2ClientError("MissingParameter", "The request must contain the parameter size or snapshotId")
    return mappings


def filled(mappings: Iterable[Mapping] | None) -> list[Mapping]:
    """Fill in the image's defaults: its root device is deleted with its instance."""
    from_image = {"VolumeSize": IMAGE_GIB, "DeleteOnTermination": True}
    given = [
        (mapping, {key: value for key, value in mapping.get("Ebs", {}).items() if value is not None})
        for mapping in mappings or []
    ]
    return [
        {**mapping, "Ebs": {**dict.fromkeys(mapping.get("Ebs", {})), **from_image, **ebs}} for mapping, ebs in given
    ]


def check(mappings: Iterable[Mapping]) -> None:
    """Raise EC2ClientError for a disk that EC2 refuses."""
    for volume in (mapping["Ebs"] for mapping in mappings):
        if int(volume["VolumeSize"]) < IMAGE_GIB:
            raise EC2ClientError(
                "InvalidBlockDeviceMapping",
                f"Volume of size {volume['VolumeSize']}GB is smaller than snapshot 'snap-0fa1a9c0de000', expect size >="
                f" {IMAGE_GIB}GB",
            )
        if volume.get("Iops") and volume.get("VolumeType", "gp2") == "gp2":
            raise EC2ClientError("InvalidParameterCombination", "The parameter iops is not supported for gp2 volumes.")


def without_speed(mappings: Iterable[Mapping]) -> list[Mapping]:
    """Return the disks as moto makes them at a launch: it passes no IOPS on, and refuses types that need some."""
    return [{**one, "Ebs": {**one["Ebs"], "VolumeType": "gp3"}} if one["Ebs"].get("Iops") else one for one in mappings]


def set_speed(instance: Instance, mappings: Iterable[Mapping]) -> None:
    """Record the type, the IOPS and the throughput of an instance's disks."""
    made = dict(instance.get_block_device_mapping)
    for one in mappings:
        volume = instance.ec2_backend.get_volume(made[one["DeviceName"]].volume_id)
        volume.volume_type = one["Ebs"].get("VolumeType") or volume.volume_type
        for key, name in _SPEEDS.items():
            if one["Ebs"].get(key):
                setattr(volume, name, int(one["Ebs"][key]))
