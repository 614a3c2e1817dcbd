"""What EMR would refuse of a spec, looked up before anything is created: bucket, release, applications, types, role."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from phalanx.aws.buckets import refusals
from phalanx.aws.refusals import code
from phalanx.errors import CloudError, Mistakes, SpecError
from phalanx.spec.spec import ClusterSpec
from phalanx.spec.spec_emr import DEFAULT_APPLICATIONS, DEFAULT_RELEASE, logs_bucket

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws

_NEWEST = 3
# Their names in China begin alike (docs/aws-behaviour.md 7.21).
_EMR, _EC2 = "elasticmapreduce.amazonaws.com", "ec2.amazonaws.com"
# docs/aws-behaviour.md 7.20
_TAG = "for-use-with-amazon-emr-managed-policies"


def require(api: Aws, spec: ClusterSpec) -> tuple[str, str]:
    """Raise SpecError with all that is not there. Return the nodes' role, if the spec names one."""
    wanted = spec.emr or {}
    mistakes = Mistakes()
    mistakes.check(_require_logs, api, wanted)
    mistakes.check(_require_release, api, spec.type, wanted)
    mistakes.check(_role, api, wanted, "service_role", _EMR)
    node_role = mistakes.check(_role, api, wanted, "node_role", _EC2)
    mistakes.check(_require_network, api, spec, wanted)
    mistakes.report()
    return node_role or ("", "")


def _require_logs(api: Aws, wanted: Mapping[str, Any]) -> None:
    for situation, refusal in refusals(api, logs_bucket(wanted), " (logs)"):
        raise SpecError(f"emr: {refusal}", "`aws s3 ls` lists your buckets, and `aws s3 mb` makes one.", code=situation)


def _role(api: Aws, wanted: Mapping[str, Any], key: str, service: str) -> tuple[str, str]:
    """Return the ARN and the unique id of the role that a key names; require that it trusts the service."""
    name = wanted.get(key)
    if not name:
        return "", ""
    found = api.exists("iam", "get_role", RoleName=name)
    if not found:
        raise SpecError(f"emr: {key}: there is no role '{name}'", "Remove it: the stack makes one.", code="no-role")
    role = found["Role"]
    if service not in json.dumps(role["AssumeRolePolicyDocument"]):
        raise SpecError(
            f"emr: {key}: the role '{name}' does not trust {service}",
            "Name another, or remove it: the stack makes one.",
            code="untrusting-role",
        )
    return role["Arn"], role["RoleId"]


def _require_network(api: Aws, spec: ClusterSpec, wanted: Mapping[str, Any]) -> None:
    """Raise SpecError with all that keeps EMR from starting nodes in the user's subnet and groups."""
    if not spec.subnets:
        return
    subnet = next(iter(api.pages("ec2", "describe_subnets", "Subnets", Filters=_ids("subnet-id", spec.subnets[0]))), {})
    given = list(dict.fromkeys(wanted[key] for key in ("master_group", "core_group") if key in wanted))
    groups = api.pages("ec2", "describe_security_groups", "SecurityGroups", Filters=_ids("group-id", *given))
    known = {one["GroupId"]: one for one in groups} if given else {}
    wrong = [f"emr: there is no security group {one}" for one in given if one not in known]
    wrong += [
        f"emr: {name} is in {one['VpcId']}, and {spec.subnets[0]} is in {subnet['VpcId']}"
        for name, one in known.items()
        if subnet and one["VpcId"] != subnet["VpcId"]
    ]
    if subnet and not subnet.get("MapPublicIpOnLaunch"):
        wrong.append(f"network: {spec.subnets[0]} gives no public addresses: set its attribute MapPublicIpOnLaunch")
    if "service_role" not in wanted:
        marked = {spec.subnets[0]: subnet, **known} if subnet else known
        wrong += [f"emr: {name} has no tag {_TAG} = true" for name, one in marked.items() if not _is_marked(one)]
    if wrong:
        hint = (
            f"AmazonEMRServicePolicy_v2 demands it: `aws ec2 create-tags --tags Key={_TAG},Value=true --resources …`."
        )
        raise SpecError.alike(wrong, hint if any(_TAG in one for one in wrong) else "", code="unsuited-network")


def _is_marked(described: Mapping[str, Any]) -> bool:
    return {"Key": _TAG, "Value": "true"} in described.get("Tags", [])


def _ids(name: str, *values: str) -> list[dict[str, Any]]:
    return [{"Name": name, "Values": list(values)}]


def _require_release(api: Aws, instance_type: str, wanted: Mapping[str, Any]) -> None:
    """Raise SpecError for a release that is not there, or with all that it lacks."""
    release = wanted.get("release", DEFAULT_RELEASE)
    try:
        known = api.call("emr", "describe_release_label", ReleaseLabel=release)
    except CloudError as error:
        said = code(error.__cause__)
        if said not in ("ValidationException", "InvalidRequestException"):
            raise
        raise SpecError(
            f"emr: release: EMR has no {release} in {api.region}", _newest(api), code="no-release"
        ) from error
    mistakes = Mistakes()
    mistakes.check(_require_applications, known, release, wanted)
    mistakes.check(_require_type, api, instance_type, release)
    mistakes.report()


def _require_applications(known: Mapping[str, Any], release: str, wanted: Mapping[str, Any]) -> None:
    there = {one["Name"] for one in known.get("Applications", [])}
    missing = [name for name in wanted.get("applications", DEFAULT_APPLICATIONS) if there and name not in there]
    if missing:
        raise SpecError(
            f"emr: applications: {release} has no {' and no '.join(missing)}",
            f"It has {', '.join(sorted(there))}.",
            code="no-application",
        )


def _newest(api: Aws) -> str:
    labels = api.call("emr", "list_release_labels").get("ReleaseLabels", [])
    numbered = sorted((_number(label), label) for label in labels if label.startswith("emr-"))
    return f"The newest are {', '.join(label for _, label in numbered[-_NEWEST:][::-1])}."


def _number(label: str) -> list[int]:
    return [int(part) for part in label.removeprefix("emr-").split(".") if part.isdecimal()]


def _require_type(api: Aws, instance_type: str, release: str) -> None:
    pages = api.pages("emr", "list_supported_instance_types", "SupportedInstanceTypes", ReleaseLabel=release)
    supported = {one["Type"] for one in pages}
    if supported and instance_type not in supported:
        family = instance_type.partition(".")[0]
        same = sorted(one for one in supported if one.partition(".")[0] == family)
        hint = (
            f"Of this family it has {', '.join(same)}."
            if same
            else "`aws emr list-supported-instance-types` lists them."
        )
        raise SpecError(f"type: EMR has no {instance_type} for {release}", hint, code="type-not-offered")
