"""Security groups, and the IAM roles of head, workers, function and jobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from troposphere import Equals, GetAtt, If, Ref, Split, Sub, Template, ec2, iam

from phalanx.plan.lustre_storage import PORTS
from phalanx.plan.plan import Plan
from phalanx.spec.own_tags import CLUSTER_TAG
from phalanx.spec.spec_data import Place, places
from phalanx.template.encryption import through
from phalanx.template.naming import REMOVAL_ROLE, arn, subnet_arn
from phalanx.template.network import ANYWHERE, nothing
from phalanx.template.request_limits import refuse_large_policy

_EVERYTHING = "-1"
NFS_PORT = 2049
_WRITING = ("s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts")
# Principals end in amazonaws.com in all partitions, but for a few services in China (docs/aws-behaviour.md 6.1).
CLOUDFORMATION = "cloudformation.amazonaws.com"
EC2 = If("InChina", "ec2.amazonaws.com.cn", "ec2.amazonaws.com")


def add_partitions(template: Template) -> None:
    """Add the condition that the names of services depend on."""
    template.add_condition("InChina", Equals(Ref("AWS::Partition"), "aws-cn"))


def add_to(template: Template, plan: Plan) -> None:
    for resource in (*security_groups(plan), *node_rules(), *_roles(plan)):
        template.add_resource(resource)


RULES = ("NodesFromNodes", "NodesToNodes")
"""The rules that nodes need before they boot."""


def security_groups(plan: Plan) -> tuple[ec2.SecurityGroup, ...]:
    # Nodes call AWS's APIs and download packages and data sets, so their egress is open, by an explicit rule.
    out = ec2.SecurityGroupRule(IpProtocol=_EVERYTHING, CidrIp=ANYWHERE, Description="All")
    return (
        _security_group("NodeSecurityGroup", "Nodes among themselves", SecurityGroupEgress=[out]),
        *([] if plan.spec.is_private else [_head_group(plan)]),
        *([_storage_group()] if plan.uses_efs and not plan.mount_target else []),
        *([_lustre_group(plan)] if plan.makes_lustre else []),
    )


def _head_group(plan: Plan) -> ec2.SecurityGroup:
    return _security_group(
        "HeadSecurityGroup",
        "ssh to the head",
        SecurityGroupIngress=[_tcp(22, "ssh", CidrIp=one) for one in (Ref("SshLocation"), *plan.ssh_networks[1:])],
        SecurityGroupEgress=[nothing()],
    )


def _storage_group() -> ec2.SecurityGroup:
    return _security_group(
        "StorageSecurityGroup",
        "NFS from the nodes",
        SecurityGroupIngress=[_tcp(NFS_PORT, "NFS", SourceSecurityGroupId=Ref("NodeSecurityGroup"))],
        SecurityGroupEgress=[nothing()],
    )


def _lustre_group(plan: Plan) -> ec2.SecurityGroup:
    """Make the group of Lustre's servers, which answer the nodes and each other (docs/aws-behaviour.md 4.12)."""
    nodes = {"SourceSecurityGroupId": Ref("NodeSecurityGroup")}
    to = [{"CidrIp": network} for network in plan.networks]
    return _security_group(
        "StorageSecurityGroup",
        "Lustre",
        SecurityGroupIngress=[_tcp(first, "Lustre", last, **nodes) for first, last in PORTS],
        SecurityGroupEgress=[_tcp(first, "Lustre", last, **one) for one in to for first, last in PORTS],
    )


def _tcp(port: int, what: str, last: int = 0, **peer: Any) -> ec2.SecurityGroupRule:
    return ec2.SecurityGroupRule(IpProtocol="tcp", FromPort=port, ToPort=last or port, Description=what, **peer)


def _security_group(title: str, description: str, **rules: Any) -> ec2.SecurityGroup:
    return ec2.SecurityGroup(title, VpcId=Ref("Vpc"), GroupDescription=description, **rules)


def node_rules() -> tuple[ec2.SecurityGroupIngress, ec2.SecurityGroupEgress]:
    """Let nodes reach each other on all ports, because MPI and NCCL choose theirs.

    EFA requires rules that name the group rather than 0.0.0.0/0 (docs/aws-behaviour.md 2.7).
    """
    group = Ref("NodeSecurityGroup")
    rule = {"GroupId": group, "IpProtocol": _EVERYTHING, "Description": "Nodes"}
    return (
        ec2.SecurityGroupIngress(RULES[0], SourceSecurityGroupId=group, **rule),
        ec2.SecurityGroupEgress(RULES[1], DestinationSecurityGroupId=group, **rule),
    )


def _roles(plan: Plan) -> tuple[iam.Role | iam.PolicyType | iam.InstanceProfile, ...]:
    limits = boundary(plan)
    way_in = sessions_of_head() if plan.spec.is_private else address_of_head()
    of_worker = [*membership_of_worker(), _end_of_head(), *(through("sqs", "dynamodb") if plan.spec.kms_key else ())]
    of_head = [*membership_of_head(), *_fleet_of_head(plan), agent_of_head(), *way_in]
    of_function = [_looks_of_function(plan), logs(GetAtt("LogGroup", "Arn")), *_removal(plan)]
    if plan.spec.kms_key:
        of_head += through("sqs", "sns", "dynamodb")
        of_function += through("sns") if plan.spec.down_after_s else ()
    return (
        role("HeadRole", EC2, of_head, **limits),
        role("WorkerRole", EC2, of_worker, **limits),
        iam.PolicyType("NodePolicy", Roles=[Ref("HeadRole"), Ref("WorkerRole")], **policy("nodes", every_node(plan))),
        role("FunctionRole", "lambda.amazonaws.com", of_function, **limits),
        job_role(plan, GetAtt("HeadRole", "Arn"), GetAtt("WorkerRole", "Arn")),
        iam.InstanceProfile("HeadInstanceProfile", Roles=[Ref("HeadRole")]),
        iam.InstanceProfile("WorkerInstanceProfile", Roles=[Ref("WorkerRole")]),
    )


def boundary(plan: Plan) -> dict[str, Any]:
    """Return the permissions boundary of all roles, if the spec has one."""
    return {"PermissionsBoundary": Ref("Boundary")} if plan.spec.permissions_boundary else {}


def role(title: str, service: str | If, statements: list[dict[str, Any]], **more: Any) -> iam.Role:
    return iam.Role(
        title,
        AssumeRolePolicyDocument=trust({"Service": service}),
        Policies=[iam.Policy(**policy("phalanx", statements))],
        **more,
    )


def policy(name: str, statements: list[dict[str, Any]]) -> dict[str, Any]:
    return {"PolicyName": name, "PolicyDocument": {"Version": "2012-10-17", "Statement": statements}}


def job_role(plan: Plan, *agents: GetAtt | str, never: Sequence[dict[str, Any]] = ()) -> iam.Role:
    """Make the jobs' role, with the user's policies and data; the agents' roles assume it (docs/aws-behaviour.md 6).

    `never` are statements that deny, whatever data and policies allow.
    """
    more = boundary(plan)
    if statements := [*_data(places(plan.spec.data)), *never]:
        refuse_large_policy(statements)
        more["Policies"] = [iam.Policy(**policy("data", statements))]
    if plan.spec.policies:
        more["ManagedPolicyArns"] = list(plan.spec.policies)
    trusted = {"AWS": list(agents)}
    return iam.Role("JobRole", AssumeRolePolicyDocument=trust(trusted), **more)


def _data(given: Iterator[Place]) -> Iterator[dict[str, Any]]:
    """Let jobs list, read and, where the user said so, write these prefixes (docs/aws-behaviour.md 12.1)."""
    for place in given:
        within = {"StringLike": {"s3:prefix": f"{place.prefix}*"}} if place.prefix else {}
        bucket = Sub(f"arn:${{AWS::Partition}}:s3:::{place.bucket}")
        objects = Sub(f"arn:${{AWS::Partition}}:s3:::{place.bucket}/{place.prefix}*")
        yield {**allow(["s3:ListBucket"], bucket), **({"Condition": within} if within else {})}
        yield allow(["s3:GetObject", *(_WRITING if place.is_writable else ())], objects)


def trust(principal: dict[str, Any]) -> dict[str, Any]:
    statement = {"Effect": "Allow", "Principal": principal, "Action": "sts:AssumeRole"}
    return {"Version": "2012-10-17", "Statement": [statement]}


def membership_of_head() -> list[dict[str, Any]]:
    """Let only the head read the queue and write the roster."""
    queue = ("ReceiveMessage", "DeleteMessage")
    table = ("GetItem", "PutItem")
    return [
        allow([f"sqs:{action}" for action in queue], GetAtt("HeadQueue", "Arn")),
        allow([f"dynamodb:{action}" for action in table], GetAtt("RosterTable", "Arn")),
    ]


def membership_of_both() -> list[dict[str, Any]]:
    """Let a node be head or worker, where both have one role."""
    queue = ("ReceiveMessage", "DeleteMessage", "SendMessage")
    return [
        allow([f"sqs:{action}" for action in queue], GetAtt("HeadQueue", "Arn")),
        allow(["dynamodb:BatchGetItem", "dynamodb:GetItem", "dynamodb:PutItem"], GetAtt("RosterTable", "Arn")),
    ]


def _fleet_of_head(plan: Plan) -> list[dict[str, Any]]:
    """Name the workers' group: a reference would make a cycle (role, group, role; docs/aws-behaviour.md 6)."""
    reads = [
        *("autoscaling:DescribeAutoScalingGroups", "autoscaling:DescribeScalingActivities"),
        *("autoscaling:DescribeScheduledActions", "ec2:DescribeInstances"),
    ]
    group = "autoScalingGroup:*:autoScalingGroupName/${AWS::StackName}-"
    workers, head = arn("autoscaling", group + "workers"), arn("autoscaling", group + "head")
    if plan.facts.reservation:
        reads.append("ec2:DescribeCapacityReservations")
    # A head that can't serve ends itself (node.failure), and an idle cluster stops itself. The greatest sizes are not
    # the head's to change.
    ends = ["autoscaling:TerminateInstanceInAutoScalingGroup", "autoscaling:SetDesiredCapacity"]
    return [
        allow(ends, [workers, head]),
        allow(["sns:Publish"], Ref("FleetTopic")),
        # These support no resource-level permissions (docs/aws-behaviour.md 6).
        allow(reads, "*"),
    ]


def agent_of_head() -> dict[str, Any]:
    """Let the head read the stack's parameters: most of the agent does not fit into user data (aws-behaviour 2.1)."""
    return allow(["cloudformation:DescribeStacks"], Ref("AWS::StackId"))


def membership_of_worker() -> list[dict[str, Any]]:
    return [
        allow(["sqs:SendMessage"], GetAtt("HeadQueue", "Arn")),
        allow(["dynamodb:BatchGetItem", "dynamodb:GetItem"], GetAtt("RosterTable", "Arn")),
    ]


def every_node(plan: Plan) -> list[dict[str, Any]]:
    """Allow no mounts: without the helper's option `iam`, EFS asks for no rights (docs/aws-behaviour.md 6)."""
    return [
        *([_metrics()] if plan.spec.sends_metrics else []),
        own_logs(),
    ]


def own_logs() -> dict[str, Any]:
    """Let a node write its boot log."""
    return logs(_own_stream())


def _end_of_head() -> dict[str, Any]:
    """Let a worker end a head that stopped answering (node.worker); its group launches another."""
    head = arn("autoscaling", "autoScalingGroup:*:autoScalingGroupName/${AWS::StackName}-head")
    return allow(["autoscaling:TerminateInstanceInAutoScalingGroup"], head)


def _metrics() -> dict[str, Any]:
    # It supports no resource-level permissions; the namespace is all that can be bound (docs/aws-behaviour.md 6).
    only = {"StringEquals": {"cloudwatch:namespace": "phalanx"}}
    return {**allow(["cloudwatch:PutMetricData"], "*"), "Condition": only}


def _own_stream() -> Sub:
    """Return the ARN of the log stream named by the node's address, which IAM knows (docs/aws-behaviour.md 6)."""
    return arn("logs", "log-group:${LogGroup}:log-stream:${!aws:Ec2InstanceSourcePrivateIPv4}")


def logs(streams: Sub | GetAtt) -> dict[str, Any]:
    """Allow streams only: a late writer must not create a deleted group again (docs/aws-behaviour.md 1.22).

    The group's own ARN ends with ":*", which matches all of its streams.
    """
    return allow(["logs:CreateLogStream", "logs:PutLogEvents"], streams)


def address_of_head() -> list[dict[str, Any]]:
    """Let the head take its Elastic IP, which can move only to this cluster's instances in its public subnet."""
    own_instances = {"StringEquals": {f"ec2:ResourceTag/{CLUSTER_TAG}": Ref("AWS::StackName")}}
    own_subnet = {"ArnLike": {"ec2:Subnet": subnet_arn("PublicSubnet")}}
    take = ["ec2:AssociateAddress"]
    return [
        allow(take, arn("ec2", "elastic-ip/${HeadAddress.AllocationId}")),
        {**allow(take, arn("ec2", "instance/*")), "Condition": own_instances},
        {**allow(take, arn("ec2", "network-interface/*")), "Condition": own_subnet},
    ]


def sessions_of_head() -> list[dict[str, Any]]:
    """Let Session Manager's agent on the head register and carry sessions (docs/aws-behaviour.md 2.55).

    AmazonSSMManagedInstanceCore would also let it run commands that others send, and read parameters.
    """
    channels = [f"ssmmessages:{verb}{kind}Channel" for verb in ("Create", "Open") for kind in ("Control", "Data")]
    return [
        allow(["ssm:UpdateInstanceInformation"], arn("ec2", "instance/*")),
        # These support no resource-level permissions.
        allow(channels, "*"),
    ]


def _looks_of_function(plan: Plan) -> dict[str, Any]:
    more = ["autoscaling:DescribeAutoScalingGroups", "ec2:DescribeSecurityGroups"] if plan.spec.down_after_s else []
    # They support no resource-level permissions (docs/aws-behaviour.md 6).
    return allow(["autoscaling:DescribeScalingActivities", *more], "*")


def _removal(plan: Plan) -> list[dict[str, Any]]:
    """Let the function look whether the cluster is forgotten, and have its stack deleted, only by that role."""
    if not plan.spec.down_after_s:
        return []
    only = {"StringEquals": {"iam:PassedToService": CLOUDFORMATION}}
    return [
        allow(["cloudformation:DescribeStacks", "cloudformation:DeleteStack"], Ref("AWS::StackId")),
        {**allow(["iam:PassRole"], GetAtt(REMOVAL_ROLE, "Arn")), "Condition": only},
        allow(["sns:Publish"], Ref("FleetTopic")),
    ]


def allow(actions: list[str], resources: str | Ref | Sub | GetAtt | Split | list[Any]) -> dict[str, Any]:
    return {"Effect": "Allow", "Action": actions, "Resource": resources}
