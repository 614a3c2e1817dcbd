"""The end of a forgotten cluster: a rule has the function look, and CloudFormation deletes the stack with its own role.

CloudFormation can't go on with a role that it has deleted, so that role and its rights outlive the stack; `phalanx
down`, `up` and `reap` remove them (docs/aws-behaviour.md 1.33). Nothing else does: CloudFormation deletes what mails
even if others hold the VPC (1.36).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from troposphere import AWSObject, GetAtt, Ref, Split, Sub, Template, awslambda, events, iam

from phalanx.plan.money import removal_steps
from phalanx.plan.plan import Plan
from phalanx.spec.own_tags import CLUSTER_TAG, KEEP_TAG
from phalanx.template.access import CLOUDFORMATION, allow, boundary, trust
from phalanx.template.naming import (
    FILE_SYSTEM,
    REMOVAL_ROLE,
    RETAIN_EXCEPT_ON_CREATE,
    arn,
    subnet_arn,
)
from phalanx.template.permissions import of_handler

PATH = Sub("/phalanx/${AWS::Region}/")
"""IAM's roles belong to no region, and this one must be found again from its own."""

# EC2's resources are bound by the cluster's tag, which nothing but the stack's own ones have, and the others by ARN: so
# that a group of verbs is as exact as a list, and takes fewer bytes.
_GROUPS = ("ec2:Delete", "ec2:Disassociate", "ec2:Revoke", "iam:Get", "iam:List")
# They support no resource-level permissions (docs/aws-behaviour.md 6).
_ANYWHERE = ("autoscaling:Describe", "ec2:Describe")
_TAGGED = ("ec2:", "autoscaling:")
# What names a resource of a type in a policy, as Fn::Sub has it.
_ARNS = {
    **dict.fromkeys(("DynamoDB::Table", "Events::Rule", "IAM::InstanceProfile", "IAM::Role"), "${{{}.Arn}}"),
    **dict.fromkeys(("Lambda::Function", "SQS::Queue"), "${{{}.Arn}}"),
    # Also of its subscriptions, whose names begin with the topic's.
    "SNS::Topic": "${{{}}}*",
}


def add_to(template: Template, plan: Plan) -> None:
    """Add it, if the spec wants it: after everything else, which it deletes."""
    if not plan.spec.down_after_s:
        return
    for resource in (_role(plan), _rule(plan), _permission()):
        template.add_resource(resource)
    template.add_resource(_policy(template, plan))


def _role(plan: Plan) -> iam.Role:
    return iam.Role(
        REMOVAL_ROLE,
        AssumeRolePolicyDocument=trust({"Service": CLOUDFORMATION}),
        Path=PATH,
        **boundary(plan),
        **RETAIN_EXCEPT_ON_CREATE,
    )


def _policy(template: Template, plan: Plan) -> iam.PolicyType:
    document = {"Version": "2012-10-17", "Statement": [*_statements(template, plan)]}
    return iam.PolicyType(
        "RemovalPolicy",
        PolicyName="removal",
        Roles=[Ref(REMOVAL_ROLE)],
        PolicyDocument=document,
        **RETAIN_EXCEPT_ON_CREATE,
    )


def _statements(template: Template, plan: Plan) -> Iterator[dict[str, Any]]:
    """Yield what deletes exactly this stack's resources, by ARN or by the cluster's tag."""
    there = {name: str(one.resource_type) for name, one in template.resources.items() if name != REMOVAL_ROLE}
    wanted = {*_deletions(template)}
    tagged = {action for action in wanted if action.startswith(_TAGGED)}
    yield allow([f"{one}*" for one in _ANYWHERE], "*")
    yield allow(sorted(wanted - tagged), _owned(there, plan))
    only = {"StringEquals": {f"aws:ResourceTag/{CLUSTER_TAG}": Ref("AWS::StackName")}}
    here = Split(" ", Sub(" ".join(arn(service, "*").data["Fn::Sub"] for service in ("ec2", "autoscaling"))))
    yield {**allow(sorted(tagged), here), "Condition": only}
    if "MountTarget" in there:
        yield _interface()
    if plan.mount_target:
        yield allow(["ec2:RevokeSecurityGroupIngress"], arn("ec2", f"security-group/{plan.mount_target.groups[0]}"))


def _deletions(template: Template) -> Iterator[str]:
    """Yield what deletes the resources that do not outlive the stack, beside descriptions."""
    made = (one.to_dict() for one in template.resources.values())
    deleted = (one for one in made if not one.get("DeletionPolicy", "").startswith("Retain"))
    for action in (action for one in deleted for action in of_handler(one, "delete")):
        if not action.startswith(_ANYWHERE):
            yield next((f"{group}*" for group in _GROUPS if action.startswith(group)), action)


def _interface() -> dict[str, Any]:
    """Delete the mount target's network interface, which has no tag of the cluster's (docs/aws-behaviour.md 4.17)."""
    only = {"ArnLike": {"ec2:Subnet": subnet_arn("PrivateSubnet")}}
    return {**allow(["ec2:DeleteNetworkInterface"], arn("ec2", "network-interface/*")), "Condition": only}


def _owned(there: Mapping[str, str], plan: Plan) -> Split:
    """Return the ARNs of the stack's resources. Split out of one text they take half as many bytes."""
    named = (_ARNS[kind[5:]].format(name) for name, kind in there.items() if kind[5:] in _ARNS)
    if not plan.uses_efs:
        return Split(" ", Sub(" ".join(named)))
    files = "arn:${AWS::Partition}:elasticfilesystem:${AWS::Region}:${AWS::AccountId}:file-system/${Id}"
    return Split(" ", Sub(" ".join([*named, files]), Id=FILE_SYSTEM))


def settings(plan: Plan) -> dict[str, Any]:
    """Return what the function must know, as Fn::Sub has it; nothing unless the spec wants a removal."""
    if not plan.spec.down_after_s:
        return {}
    rate_s, warning_s = removal_steps(plan.spec.down_after_s)
    return {
        "STACK": "${AWS::StackId}",
        "ROLE": f"${{{REMOVAL_ROLE}.Arn}}",
        "TOPIC": "${FleetTopic}",
        "DOWN_AFTER": str(plan.spec.down_after_s),
        "WARNING": str(warning_s),
        "RATE": str(rate_s),
        "CLUSTER_TAG": CLUSTER_TAG,
        "KEEP_TAG": KEEP_TAG,
        # Whether others may depend on the network that the stack made.
        "NETWORK": "1" if plan.facts.vpc is None or plan.endpoints else "",
    }


def _rule(plan: Plan) -> events.Rule:
    minutes = removal_steps(plan.spec.down_after_s or 0)[0] // 60
    return events.Rule(
        "RemovalRule",
        ScheduleExpression=f"rate({minutes} minute{'s' if minutes > 1 else ''})",
        Targets=[events.Target("RemovalTarget", Id="function", Arn=GetAtt("Function", "Arn"))],
    )


def _permission() -> AWSObject:
    return awslambda.Permission(
        "RemovalPermission",
        FunctionName=Ref("Function"),
        Action="lambda:InvokeFunction",
        Principal="events.amazonaws.com",
        SourceArn=GetAtt("RemovalRule", "Arn"),
    )
