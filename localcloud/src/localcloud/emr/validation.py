"""What EMR finds wrong with a cluster after it has accepted it: the cluster ends with the code VALIDATION_ERROR.

The sources of the messages are in docs/aws-behaviour.md, section 7.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moto.ec2.models import EC2Backend, ec2_backends
from moto.iam.models import Role

from localcloud.api import moto_setup, partitions
from localcloud.context import Context
from localcloud.emr import requests
from localcloud.emr.records import Cluster, Reason
from localcloud.iam import credentials, middleware, policy

CODE = "VALIDATION_ERROR"
SUBNET = "The VPC/subnet configuration was invalid: The subnet configuration was invalid"
_AL2023_SINCE = (7, 0, 0)


class Invalid(Exception):  # noqa: N818
    """The cluster can't start; the message is EMR's."""

    def __init__(self, message: str, error_code: str = "", **data: str) -> None:
        super().__init__(message)
        self.error_code, self.data = error_code, data

    def reason(self) -> Reason:
        """Return the reason for the cluster's end."""
        if not self.error_code:
            return Reason(CODE, str(self))
        data = [{name.replace("_", "-"): value} for name, value in self.data.items()]
        details = {"ErrorCode": self.error_code, "ErrorMessage": str(self), "ErrorData": data}
        return Reason(CODE, str(self), details)


def check(context: Context, cluster: Cluster) -> None:
    """Raise Invalid for the first problem."""
    backend = ec2_backends[cluster.account][cluster.region]
    _check_network(backend, cluster)
    _check_key(backend, cluster.instances)
    _check_service_role(context, backend, cluster)
    for group in requests.groups(cluster.wanted):
        if image_id := group.get("CustomAmiId") or cluster.wanted.get("CustomAmiId"):
            _check_image(backend, image_id, cluster.wanted)


def _check_network(backend: EC2Backend, cluster: Cluster) -> None:
    instances = cluster.instances
    subnet_id = subnet_of(instances)
    subnet = next((one for by_id in backend.subnets.values() for one in by_id.values() if one.id == subnet_id), None)
    if subnet_id and subnet is None:
        raise Invalid(f"{SUBNET}: The subnet {subnet_id} does not exist.")
    for group_id in security_groups(instances):
        group = backend.get_security_group_from_id(group_id)
        if group is None:
            raise Invalid(f"The security group '{group_id}' does not exist")
        if subnet and group.vpc_id != subnet.vpc_id:
            raise Invalid(
                "All the security groups and the subnet must belong to the same VPC",
                "VALIDATION_ERROR_SECURITY_GROUP_NOT_FROM_ONE_VPC",
            )


def subnet_of(instances: Mapping[str, Any]) -> str:
    """Return the subnet of a request; "" if EMR chooses one."""
    return str(instances.get("Ec2SubnetId") or next(iter(instances.get("Ec2SubnetIds") or []), ""))


def security_groups(instances: Mapping[str, Any]) -> list[str]:
    """Return all security groups that a request names."""
    names = ("EmrManagedMasterSecurityGroup", "EmrManagedSlaveSecurityGroup", "ServiceAccessSecurityGroup")
    further = [instances.get(f"Additional{role}SecurityGroups") or [] for role in ("Master", "Slave")]
    return [*filter(None, map(instances.get, names)), *further[0], *further[1]]


def _check_key(backend: EC2Backend, instances: Mapping[str, Any]) -> None:
    name = instances.get("Ec2KeyName")
    if name and name not in backend.key_pairs:
        raise Invalid(
            "The given SSH key name was invalid", "VALIDATION_ERROR_INVALID_SSH_KEY_NAME", ssh_key_name=str(name)
        )


def _check_service_role(context: Context, backend: EC2Backend, cluster: Cluster) -> None:
    given = str(cluster.wanted["ServiceRole"])
    role = credentials.role_of(cluster.account, given)
    if role is None or not credentials.trusts(role, partitions.emr()):
        raise Invalid(f"EMR service role {role.arn if role else given} is invalid")
    if not (_may_launch(context, backend, cluster, role) and _may_pass(context, cluster, role)):
        raise Invalid(f"Service role {role.arn} has insufficient EC2 permissions")


def _may_launch(context: Context, backend: EC2Backend, cluster: Cluster, role: Role) -> bool:
    """Whether EMR may launch instances in the subnet: AmazonEMRServicePolicy_v2 demands a tag of it."""
    subnet_id = subnet_of(cluster.instances) or "*"
    tags = backend.describe_tags({"resource-id": [subnet_id]}) if subnet_id != "*" else []
    keys = {f"{prefix}:resourcetag/{tag['key'].lower()}": [tag["value"]] for tag in tags for prefix in ("aws", "ec2")}
    arn = f"{partitions.arn()}:ec2:{cluster.region}:{cluster.account}:subnet/{subnet_id}"
    return not middleware.denial(context, role.name, role.arn, policy.Ask("ec2:RunInstances", arn, keys))


def _may_pass(context: Context, cluster: Cluster, role: Role) -> bool:
    """Whether EMR may give its instances their role."""
    profile = requests.profile_named(cluster.account, str(cluster.wanted["JobFlowRole"]))
    keys = {"iam:passedtoservice": [partitions.ec2()]}
    asks = [policy.Ask("iam:PassRole", given.arn, keys) for given in (profile.roles if profile else ())]
    return not any(middleware.denial(context, role.name, role.arn, ask) for ask in asks)


def _check_image(backend: EC2Backend, image_id: str, wanted: Mapping[str, Any]) -> None:
    image = backend.amis.get(image_id)
    if image is None:
        raise Invalid(f"The image id '[{image_id}]' does not exist")
    if "Amazon Linux 2023" not in (image.description or ""):
        raise Invalid(f"The custom AMI {image_id} ({image.name}) is not an Amazon Linux image")
    if requests.version(wanted["ReleaseLabel"]) < _AL2023_SINCE:
        raise Invalid(f"The custom AMI {image_id} is not an Amazon Linux 2 image, which {wanted['ReleaseLabel']} needs")
    size, least = int(wanted.get("EbsRootVolumeSize") or 0), moto_setup.root_gib(image_id)
    if size and size < least:
        snapshot = image.ebs_snapshot.id
        raise Invalid(f"Volume of size {size}GB is smaller than snapshot '{snapshot}', expect size >= {least}GB")
