"""The second builder of documents: a cluster of Amazon EMR in one stack, beside its network, storage and rendezvous.

EMR makes the machines, so there are no groups, no launch templates, no user data and no function that watches launches
(docs/aws-behaviour.md 7). Everything else is of the modules that the first builder uses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from troposphere import Equals, GetAtt, If, Not, NoValue, Output, Ref, Sub, Tags, Template, emr, iam

from phalanx.plan.capacity import SPOT
from phalanx.plan.plan import Plan
from phalanx.plan.vpc_endpoints import ENDPOINTS
from phalanx.spec.own_tags import CLUSTER_TAG
from phalanx.spec.spec_emr import DEFAULT_APPLICATIONS, DEFAULT_RELEASE
from phalanx.template import access, fleet, network, outputs, parameters, rendezvous, storage, userdata
from phalanx.template.emr import bootstrap_action
from phalanx.template.naming import DELETE, arn, own_tags

MANAGED_TAG = "for-use-with-amazon-emr-managed-policies"
"""What AmazonEMRServicePolicy_v2 requires of the network in which EMR starts instances (docs/aws-behaviour.md 7.20)."""
_TAGGED = ("AWS::EC2::VPC", "AWS::EC2::Subnet", "AWS::EC2::SecurityGroup")
_SERVICE_POLICY = "arn:${AWS::Partition}:iam::aws:policy/service-role/AmazonEMRServicePolicy_v2"
# docs/aws-behaviour.md 7.21
_EMR = If("InChina", "elasticmapreduce.amazonaws.com.cn", "elasticmapreduce.amazonaws.com")
_NETWORK = ("PublicRoute", "PublicSubnetRoutes", *ENDPOINTS)
# Keys of `disk` and what EMR calls them.
_ROOT = {"size_gib": "EbsRootVolumeSize", "iops": "EbsRootVolumeIops", "throughput_mib_s": "EbsRootVolumeThroughput"}


def add_to(template: Template, plan: Plan) -> None:
    parameters.add_common_to(template, plan)
    template.add_condition("HasWorkers", Not(Equals(Ref("Workers"), 0)))
    for resource in _resources(plan):
        if resource.resource_type in _TAGGED:
            resource.Tags = getattr(resource, "Tags", Tags()) + Tags({MANAGED_TAG: "true"})
        template.add_resource(resource)
    storage.add_to(template, plan)
    for name, (value, description) in outputs.for_people(plan, "hadoop@…").items():
        template.add_output(Output(name, Value=value, Description=description))
    for name, value in {**outputs.common(plan), "EmrCluster": Ref("EmrCluster")}.items():
        template.add_output(Output(name, Value=value))


def _resources(plan: Plan) -> list[Any]:
    return [
        *_network(plan),
        *access.security_groups(plan),
        *access.node_rules(),
        *_roles(plan),
        rendezvous.queue(),
        rendezvous.table(),
        *rendezvous.ready(plan, *_before_nodes(plan)),
        _cluster(plan),
    ]


def _network(plan: Plan) -> list[Any]:
    """Make a VPC, or, in the user's, only an address."""
    if plan.facts.vpc:
        return [network.head_address()]
    # All nodes are in the public subnet, so it has the larger block.
    made = network.public(plan.network.private)
    return [*network.vpc(plan.network.vpc), *made, *network.endpoints("PublicRouteTable")]


def _before_nodes(plan: Plan) -> list[str]:
    """Return what must be there before a node boots, and is not referred to."""
    made = () if plan.facts.vpc else _NETWORK
    policy = ("NodePolicy",) if _own_role(plan) else ()
    return [*made, *access.RULES, *policy, *storage.reached_by(plan)]


def _own_role(plan: Plan) -> str:
    """Return the name of the user's role for the nodes; "" if the stack makes one."""
    return (plan.spec.emr or {}).get("node_role", "")


def _cluster(plan: Plan) -> emr.Cluster:
    """Make the cluster, which is complete when EMR has run the agent's boot on its nodes and installed applications."""
    wanted = plan.spec.emr or {}
    applications = wanted.get("applications", DEFAULT_APPLICATIONS)
    return emr.Cluster(
        "EmrCluster",
        Name=Ref("AWS::StackName"),
        ReleaseLabel=wanted.get("release", DEFAULT_RELEASE),
        Applications=[emr.Application(Name=name) for name in applications],
        CustomAmiId=Ref("Image"),
        LogUri=wanted["logs"].rstrip("/") + "/",
        ServiceRole=wanted.get("service_role", Ref("EmrRole")),
        JobFlowRole=Ref("NodeProfile"),
        VisibleToAllUsers=True,
        Instances=_instances(plan),
        BootstrapActions=[_bootstrap(plan)],
        Tags=own_tags(plan) + Tags({MANAGED_TAG: "true"}),
        DependsOn=_before_nodes(plan),
        **_root_volume(plan),
        **_configurations(wanted),
        **DELETE,
    )


def _instances(plan: Plan) -> emr.JobFlowInstancesConfig:
    """Make uniform instance groups, all in one subnet. One group of rules serves both kinds of nodes.

    EMR adds rules to managed groups, and two groups whose rules name each other could not be deleted with the stack
    (docs/aws-behaviour.md 7.10). Beside managed groups of the user's, the stack's has all that nodes need.
    """
    nodes, own = Ref("NodeSecurityGroup"), plan.spec.emr or {}
    more = [nodes] if "master_group" in own else []
    of_cores: dict[str, Any] = {"AdditionalSlaveSecurityGroups": more} if more else {}
    core = _group("workers", Ref("Workers"), "SPOT" if plan.spec.capacity == SPOT else "ON_DEMAND")
    return emr.JobFlowInstancesConfig(
        Ec2SubnetId=Ref("PublicSubnet"),
        Ec2KeyName=If("HasKeyPair", Ref("KeyPair"), NoValue),
        EmrManagedMasterSecurityGroup=own.get("master_group", nodes),
        EmrManagedSlaveSecurityGroup=own.get("core_group", nodes),
        AdditionalMasterSecurityGroups=[Ref("HeadSecurityGroup"), *more],
        **of_cores,
        KeepJobFlowAliveWhenNoSteps=True,
        TerminationProtected=False,
        MasterInstanceGroup=_group("head", 1, "ON_DEMAND"),
        CoreInstanceGroup=If("HasWorkers", core, NoValue),
    )


def _group(name: str, count: Any, market: str) -> emr.InstanceGroupConfigProperty:
    return emr.InstanceGroupConfigProperty(
        Name=name, InstanceCount=count, InstanceType=Ref("InstanceType"), Market=market
    )


def _root_volume(plan: Plan) -> dict[str, int]:
    chosen = {"size_gib": plan.root_gib, **(plan.spec.disk or {})}
    return {_ROOT[key]: value for key, value in chosen.items() if key in _ROOT}


def _configurations(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Let YARN start containers as the user who asked, if jobs come through it (docs/aws-behaviour.md 7.31)."""
    if wanted.get("via_yarn") != "yes":
        return {}
    own = {"yarn.nodemanager.linux-container-executor.nonsecure-mode.limit-users": "false"}
    return {"Configurations": [emr.Configuration(Classification="yarn-site", ConfigurationProperties=own)]}


def _bootstrap(plan: Plan) -> emr.BootstrapActionConfig:
    """Make the action. The object is not in the stack: `up` uploads it, and from the console a person does."""
    settings = {
        **fleet.config("head", plan),
        "worker_role": plan.facts.node_role[1] if _own_role(plan) else GetAtt("NodeRole", "RoleId"),
        "digest": userdata.digest(plan.spec.boot),
    }
    script = emr.ScriptBootstrapActionConfig(Path=bootstrap_action.url(plan), Args=bootstrap_action.arguments(settings))
    return emr.BootstrapActionConfig(Name="phalanx", ScriptBootstrapAction=script)


def _roles(plan: Plan) -> list[iam.Role | iam.PolicyType | iam.InstanceProfile]:
    """Make the roles of EMR, of its nodes and of jobs. EMR gives all nodes one role: the head's and the workers'."""
    of_nodes = [
        *access.membership_of_both(),
        *access.every_node(plan),
        *access.address_of_head(),
        access.agent_of_head(),
        *_machines(),
        *_logs(plan),
    ]
    role = _own_role(plan)
    made = (
        iam.PolicyType("NodePolicy", Roles=[role], **access.policy(f"phalanx-{plan.spec.name}", of_nodes))
        if role
        else access.role("NodeRole", access.EC2, of_nodes, **access.boundary(plan))
    )
    return [
        made,
        access.job_role(plan, _role_arn(plan), never=[_keep_agents(plan)]),
        iam.InstanceProfile("NodeProfile", Roles=[role or Ref("NodeRole")]),
        *([] if "service_role" in (plan.spec.emr or {}) else [_emr_role(plan)]),
    ]


def _role_arn(plan: Plan) -> str | GetAtt:
    return plan.facts.node_role[0] if _own_role(plan) else GetAtt("NodeRole", "Arn")


def _emr_role(plan: Plan) -> iam.Role:
    passed = access.allow(["iam:PassRole"], _role_arn(plan))
    policy = {"ManagedPolicyArns": [Sub(_SERVICE_POLICY)], **access.boundary(plan)}
    return access.role("EmrRole", _EMR, [passed], **policy)


def _machines() -> list[dict[str, Any]]:
    """Let the head see and change this cluster's groups. A reference to it would make a cycle, so its tag decides."""
    actions = [f"elasticmapreduce:{action}" for action in ("ListInstanceGroups", "ListInstances")]
    own = {"StringEquals": {f"elasticmapreduce:ResourceTag/{CLUSTER_TAG}": Ref("AWS::StackName")}}
    changes = access.allow([*actions, "elasticmapreduce:ModifyInstanceGroups"], arn("elasticmapreduce", "cluster/*"))
    return [{**changes, "Condition": own}, access.allow(["ec2:DescribeInstances"], "*")]


def _logs(plan: Plan) -> list[dict[str, Any]]:
    """Let nodes read the agent from the place of the logs, and write EMR's logs there."""
    bucket, place = _place_of_logs(plan)
    return [
        access.allow(["s3:GetObject", "s3:PutObject"], Sub(f"{place}*")),
        _keep_agents(plan),
        access.allow(["s3:ListBucket"], Sub(bucket)),
    ]


def _keep_agents(plan: Plan) -> dict[str, Any]:
    """Deny any change of the agents, which nodes of all clusters with this place run as root.

    Jobs may have the right to write there by `data` or `policies`.
    """
    _, place = _place_of_logs(plan)
    return {**access.allow(["s3:PutObject", "s3:DeleteObject"], Sub(f"{place}phalanx/*")), "Effect": "Deny"}


def _place_of_logs(plan: Plan) -> tuple[str, str]:
    """Return the ARNs of the bucket, and of what is below the place in it."""
    assert plan.spec.emr is not None
    bucket, _, prefix = plan.spec.emr["logs"].removeprefix("s3://").rstrip("/").partition("/")
    arn_of_bucket = f"arn:${{AWS::Partition}}:s3:::{bucket}"
    return arn_of_bucket, f"{arn_of_bucket}/{prefix}/" if prefix else f"{arn_of_bucket}/"
