"""What RunJobFlow and its relatives refuse at once, and what a request says about the groups of a cluster.

The sources of the messages are in docs/aws-behaviour.md, section 7.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from moto.core.exceptions import ServiceException
from moto.emr.exceptions import ValidationException
from moto.emr.models import emr_backends
from moto.iam.models import InstanceProfile, Role, iam_backends

from localcloud.api import partitions
from localcloud.emr.records import Cluster
from localcloud.iam import credentials, errors

_LABEL = re.compile(r"emr-(\d+)\.(\d+)\.(\d+)")
_LABEL_OF_CUSTOM_AMIS = (5, 7, 0)
_MOST_ACTIONS = 16
_MOST_STEPS = 256
_MOST_ROOT_GIB = 100
PROTECTED = "Could not shut down one or more job flows since they are termination protected."
COMMAND_RUNNER = "command-runner.jar"
_SCRIPT_RUNNER = re.compile(r"s3n?://([\w-]+\.)?elasticmapreduce/libs/script-runner/script-runner\.jar")
# What a cluster of the local cloud does not do.
_NOT_SERVED = ("AmiVersion", "AutoScalingRole", "KerberosAttributes", "ManagedScalingPolicy", "SecurityConfiguration")


def not_served(what: str) -> ServiceException:
    """Return the refusal of something that AWS does and the local cloud does not."""
    return ServiceException(errors.NOT_SERVED, f"The local cloud does not serve {what}.")


def version(label: str) -> tuple[int, ...]:
    """Return the numbers of a release label; (0, 0, 0) for one in another form."""
    found = _LABEL.fullmatch(label)
    return tuple(map(int, found.groups())) if found else (0, 0, 0)


def groups(wanted: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the instance groups of a request, also of one that gives types and a count."""
    instances = wanted["Instances"]
    if given := instances.get("InstanceGroups"):
        return [dict(group) for group in given]
    master, count = instances.get("MasterInstanceType"), int(instances.get("InstanceCount") or 1)
    kind = instances.get("SlaveInstanceType") or master
    found = [{"InstanceRole": "MASTER", "InstanceType": master, "InstanceCount": 1}]
    return found if count == 1 else [*found, {"InstanceRole": "CORE", "InstanceType": kind, "InstanceCount": count - 1}]


def check(account: str, region: str, wanted: Mapping[str, Any]) -> None:
    """Raise EMR's exception for what it refuses before it makes a cluster."""
    _check_served(wanted)
    _check_label(account, region, wanted)
    _check_roles(account, wanted)
    _check_groups(wanted)
    _check_types(account, region, wanted)
    _check_security_groups(wanted["Instances"])
    _check_root_volume(wanted)
    if len(wanted.get("BootstrapActions") or []) > _MOST_ACTIONS:
        raise ValidationException(f"A cluster can have at most {_MOST_ACTIONS} bootstrap actions.")
    check_steps(wanted.get("Steps") or [], 0)


def _check_served(wanted: Mapping[str, Any]) -> None:
    given = [name for name in _NOT_SERVED if wanted.get(name)]
    if wanted["Instances"].get("InstanceFleets"):
        given.append("instance fleets")
    if int(wanted.get("StepConcurrencyLevel") or 1) > 1:
        given.append("StepConcurrencyLevel above 1")
    if given:
        raise not_served(f"{', '.join(given)} of EMR clusters")


def _check_label(account: str, region: str, wanted: Mapping[str, Any]) -> None:
    label = str(wanted.get("ReleaseLabel") or "")
    if label not in emr_backends[account][region].list_release_labels():
        raise ValidationException(f"The supplied release label is invalid: {label}.")
    if wanted.get("CustomAmiId") and version(label) < _LABEL_OF_CUSTOM_AMIS:
        raise ValidationException("Custom AMI is not allowed")


def _check_roles(account: str, wanted: Mapping[str, Any]) -> None:
    if not wanted.get("JobFlowRole"):
        raise ValidationException("InstanceProfile is required for creating cluster")
    if not wanted.get("ServiceRole"):
        raise ValidationException("ServiceRole is required for creating cluster")
    profile = profile_named(account, wanted["JobFlowRole"])
    if profile is None or not profile.roles:
        raise ValidationException(f"Invalid InstanceProfile: {wanted['JobFlowRole']}.")
    _check_passing(credentials.role_of(account, wanted["ServiceRole"]), "elasticmapreduce")
    _check_passing(profile.roles[0], "ec2")


def profile_named(account: str, name_or_arn: str) -> InstanceProfile | None:
    """Return the instance profile with a name or ARN; None if there is none."""
    name = name_or_arn.rpartition("/")[2]
    profiles = iam_backends[account][partitions.played()].instance_profiles.values()
    return next((profile for profile in list(profiles) if profile.name == name), None)


def _check_passing(role: Role | None, service: str) -> None:
    """Refuse a caller who may not pass a role to EMR, or to its instances."""
    may = credentials.may()
    refusal = (
        may("iam:PassRole", role.arn, {"iam:passedtoservice": [f"{service}.amazonaws.com"]}) if may and role else ""
    )
    if refusal:
        raise ServiceException("AccessDeniedException", refusal)


def _check_groups(wanted: Mapping[str, Any]) -> None:
    found = groups(wanted)
    roles = [group["InstanceRole"] for group in found]
    masters = [int(group["InstanceCount"]) for group in found if group["InstanceRole"] == "MASTER"]
    if len(masters) != 1 or roles.count("CORE") > 1:
        raise ValidationException("A cluster must have one master instance group and at most one core instance group.")
    if masters[0] not in (1, 3):
        raise ValidationException("Master instance group must have exactly 3 instances for HA clusters.")
    if "TASK" in roles and "CORE" not in roles:
        raise ValidationException("A task instance group needs a core instance group.")


def _check_types(account: str, region: str, wanted: Mapping[str, Any]) -> None:
    supported = emr_backends[account][region]._get_instance_type_names(wanted["ReleaseLabel"])
    for group in groups(wanted):
        if group["InstanceType"] not in supported:
            raise ValidationException(f"Instance type '{group['InstanceType']}' is not supported.")


def _check_security_groups(instances: Mapping[str, Any]) -> None:
    given = [instances.get(f"EmrManaged{role}SecurityGroup") for role in ("Master", "Slave")]
    if any(given) and not all(given):
        raise ValidationException(
            "You must specify both EmrManagedMasterSecurityGroup and EmrManagedSlaveSecurityGroup, or neither."
        )


def least_root_gib(label: str) -> int:
    """Return the least size of the root volume of a release (docs/aws-behaviour.md 7.2)."""
    return 15 if version(label) >= (6, 10, 0) else 10


def _check_root_volume(wanted: Mapping[str, Any]) -> None:
    size = wanted.get("EbsRootVolumeSize")
    least = least_root_gib(wanted["ReleaseLabel"])
    if size is not None and not least <= int(size) <= _MOST_ROOT_GIB:
        raise ValidationException(f"The EBS root volume size must be between {least} and {_MOST_ROOT_GIB} GiB.")


def check_steps(steps: Iterable[Mapping[str, Any]], present: int) -> None:
    """Refuse more steps than a cluster may have, and those that need Hadoop."""
    found = list(steps)
    if present + len(found) > _MOST_STEPS:
        raise ValidationException(f"Maximum number of steps for job flow exceeded: {_MOST_STEPS}")
    for step in found:
        jar = str(step["HadoopJarStep"]["Jar"])
        if jar != COMMAND_RUNNER and not is_script_runner(jar):
            raise not_served(f"steps with {jar}: it has no Hadoop. It runs {COMMAND_RUNNER} and script-runner.jar")
        if not step["HadoopJarStep"].get("Args"):
            raise ValidationException(f"A step with {jar} needs arguments.")


def is_script_runner(jar: str) -> bool:
    """Whether a step's JAR is EMR's own for scripts in S3."""
    return bool(_SCRIPT_RUNNER.fullmatch(jar))


def check_change(cluster: Cluster) -> None:
    """Refuse changes of a cluster that ends or has ended."""
    if cluster.is_ending:
        raise ValidationException(f"Job flow {cluster.id} is not in a state that allows changes: {cluster.life.state}")
