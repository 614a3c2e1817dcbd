"""What EMR refuses: at once, or by ending a cluster that it has accepted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError
from emr_fakes import ACTION, Emr, allow, command, request, trust
from fleet_fakes import forget_resources, name
from stack_fakes import stacks

from localcloud.api import moto_setup

AMAZON_LINUX, TRAINING = moto_setup.AMAZON_LINUX["x86_64"], moto_setup.AMAZON_LINUX_FOR_TRAINING["x86_64"]
SMALL = {"InstanceRole": "MASTER", "InstanceType": "m5.large", "InstanceCount": 1}


@pytest.fixture(scope="module")
def emr(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emr]:
    with stacks(tmp_path_factory.mktemp("state")) as cloud:
        yield Emr(cloud)
        forget_resources(cloud.context.account)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"ReleaseLabel": "emr-7.99.0"}, "The supplied release label is invalid: emr-7.99.0."),
        ({"ReleaseLabel": "emr-5.6.0", "CustomAmiId": AMAZON_LINUX}, "Custom AMI is not allowed"),
        ({"JobFlowRole": ""}, "InstanceProfile is required for creating cluster"),
        ({"JobFlowRole": "nobody"}, "Invalid InstanceProfile: nobody."),
        ({"ServiceRole": ""}, "ServiceRole is required for creating cluster"),
        ({"EbsRootVolumeSize": 14}, "must be between 15 and 100 GiB"),
        ({"ReleaseLabel": "emr-6.9.0", "EbsRootVolumeSize": 9}, "must be between 10 and 100 GiB"),
        ({"EbsRootVolumeSize": 101}, "must be between 15 and 100 GiB"),
        ({"BootstrapActions": [ACTION] * 17}, "at most 16 bootstrap actions"),
        ({"Instances": {"InstanceGroups": [SMALL]}}, "Instance type 'm5.large' is not supported."),
        ({"Instances": {"EmrManagedMasterSecurityGroup": "sg-1"}}, "both EmrManagedMasterSecurityGroup and"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else ",".join(value),
)
def test_a_request_that_emr_refuses_at_once(emr, more, message):
    with pytest.raises(ClientError) as refused:
        emr.api.run_job_flow(**request(emr.subnet, 0, **more))
    assert refused.value.response["Error"]["Code"] == "ValidationException"
    assert message in refused.value.response["Error"]["Message"]


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"SecurityConfiguration": "kerberos"}, "SecurityConfiguration"),
        ({"StepConcurrencyLevel": 5}, "StepConcurrencyLevel"),
        ({"Instances": {"InstanceGroups": [], "InstanceFleets": [{"InstanceFleetType": "MASTER"}]}}, "instance fleets"),
        (
            {"Steps": [{"Name": "x", "HadoopJarStep": {"Jar": "s3://bucket/mine.jar", "Args": ["a"]}}]},
            "s3://bucket/mine.jar",
        ),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else ",".join(value),
)
def test_what_the_local_cloud_does_not_do_is_refused_by_name(emr, more, named):
    with pytest.raises(ClientError, match="UnsupportedOperation") as refused:
        emr.api.run_job_flow(**request(emr.subnet, 0, **more))
    assert named in str(refused.value)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"ServiceRole": "EMR_EC2_DefaultRole"}, ":role/EMR_EC2_DefaultRole is invalid"),
        ({"Instances": {"Ec2KeyName": "lost"}}, "The given SSH key name was invalid"),
        ({"Instances": {"Ec2SubnetId": "subnet-0"}}, "configuration was invalid: The subnet subnet-0 does not exist."),
        ({"Instances": {"AdditionalMasterSecurityGroups": ["sg-0"]}}, "The security group 'sg-0' does not exist"),
        ({"CustomAmiId": "ami-0"}, "The image id '[ami-0]' does not exist"),
        ({"CustomAmiId": moto_setup.IMAGES["x86_64"]}, "is not an Amazon Linux image"),
        ({"CustomAmiId": AMAZON_LINUX, "ReleaseLabel": "emr-6.15.0"}, "is not an Amazon Linux 2 image"),
        ({"CustomAmiId": TRAINING, "EbsRootVolumeSize": 50}, "is smaller than snapshot"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else ",".join(value),
)
def test_a_cluster_that_emr_ends_because_its_settings_are_wrong(emr, more, message):
    cluster = emr.run(0, **more)
    state, code, found = emr.ended(cluster)
    assert (state, code) == ("TERMINATED_WITH_ERRORS", "VALIDATION_ERROR")
    assert message in found


def test_what_ec2_refuses_ends_the_cluster_with_its_words(emr):
    zone = emr.cloud.client("ec2").create_subnet(
        VpcId=emr.vpc, CidrBlock="10.0.2.0/24", AvailabilityZone="us-east-1-atl-2a"
    )
    cluster = emr.run(0, Instances={"Ec2SubnetId": zone["Subnet"]["SubnetId"]})
    assert "is not supported in your requested Availability Zone (us-east-1-atl-2a)" in emr.ended(cluster)[2]


def group_open_at(emr: Emr, port: int, **source: str) -> str:
    """Make a security group with one inbound rule: open to everybody, or to a group."""
    ec2 = emr.cloud.client("ec2")
    made = ec2.create_security_group(GroupName=name("group"), Description="of a test", VpcId=emr.vpc)["GroupId"]
    opened = {"UserIdGroupPairs": [source]} if source else {"IpRanges": [{"CidrIp": "0.0.0.0/0"}]}
    rule = {"IpProtocol": "tcp", "FromPort": port, "ToPort": port, **opened}
    ec2.authorize_security_group_ingress(GroupId=made, IpPermissions=[rule])
    return made


def test_a_group_that_is_open_to_everybody_is_blocked_unless_its_port_is_permitted(emr):
    ssh, web = group_open_at(emr, 22), group_open_at(emr, 8088)
    assert emr.state(emr.ready(0, Instances={"AdditionalMasterSecurityGroups": [ssh]})) == "WAITING"
    blocked = emr.run(0, Instances={"AdditionalMasterSecurityGroups": [web]})
    assert f"inbound rule of security group {web} that opens ports 8088-8088 to everybody" in emr.ended(blocked)[2]
    known = emr.api.get_block_public_access_configuration()["BlockPublicAccessConfiguration"]
    permitted = [*known["PermittedPublicSecurityGroupRuleRanges"], {"MinRange": 8000, "MaxRange": 9000}]
    changed = {**known, "PermittedPublicSecurityGroupRuleRanges": permitted}
    emr.api.put_block_public_access_configuration(BlockPublicAccessConfiguration=changed)
    assert emr.state(emr.ready(0, Instances={"AdditionalMasterSecurityGroups": [web]})) == "WAITING"


def test_own_groups_in_a_private_subnet_need_one_for_emr_that_lets_the_master_report(emr):
    own = group_open_at(emr, 22)
    given = {"EmrManagedMasterSecurityGroup": own, "EmrManagedSlaveSecurityGroup": own}
    lacking = emr.run(0, Instances=given)
    assert "must also specify a ServiceAccessSecurityGroup" in emr.ended(lacking)[2]
    deaf = emr.run(0, Instances={**given, "ServiceAccessSecurityGroup": group_open_at(emr, 22, GroupId=own)})
    assert "missing ingress rule from EmrManagedMasterSecurityGroup on port 9443" in emr.ended(deaf)[2]
    service = group_open_at(emr, 9443, GroupId=own)
    cluster = emr.ready(0, Instances={**given, "ServiceAccessSecurityGroup": service})
    assert emr.describe(cluster)["Ec2InstanceAttributes"]["ServiceAccessSecurityGroup"] == service


@pytest.mark.parametrize("size", [60, None])
def test_a_custom_image_with_a_root_volume_as_large_as_its_snapshot_is_taken(emr, size):
    more = {"EbsRootVolumeSize": size} if size else {}
    cluster = emr.ready(0, CustomAmiId=TRAINING, **more)
    assert emr.describe(cluster)["CustomAmiId"] == TRAINING
    machine = emr.cloud.client("ec2").describe_instances(InstanceIds=[emr.instances(cluster)[0]["Ec2InstanceId"]])
    assert machine["Reservations"][0]["Instances"][0]["ImageId"] == TRAINING


def test_the_service_role_needs_the_tag_that_its_policy_demands_of_the_subnet(emr):
    iam, ec2 = emr.cloud.client("iam"), emr.cloud.client("ec2")
    role = name("emr-role")
    iam.create_role(RoleName=role, AssumeRolePolicyDocument=trust("elasticmapreduce.amazonaws.com"))
    policy = "arn:aws:iam::aws:policy/service-role/AmazonEMRServicePolicy_v2"
    iam.attach_role_policy(RoleName=role, PolicyArn=policy)
    refused = emr.run(0, ServiceRole=role)
    assert emr.ended(refused)[2].endswith(f":role/{role} has insufficient EC2 permissions")
    tag = {"Key": "for-use-with-amazon-emr-managed-policies", "Value": "true"}
    ec2.create_tags(Resources=[emr.subnet], Tags=[tag])
    assert emr.state(emr.ready(0, ServiceRole=role)) == "WAITING"
    ec2.delete_tags(Resources=[emr.subnet], Tags=[tag])


@pytest.mark.parametrize(
    ("operation", "given"),
    [
        ("describe_cluster", {"ClusterId": "j-0"}),
        ("list_instances", {"ClusterId": "j-0"}),
        ("list_steps", {"ClusterId": "j-0"}),
        ("add_job_flow_steps", {"JobFlowId": "j-0", "Steps": [command("true")]}),
        ("terminate_job_flows", {"JobFlowIds": ["j-0"]}),
    ],
)
def test_a_cluster_that_does_not_exist(emr, operation, given):
    with pytest.raises(ClientError, match=r"InvalidRequestException.*Cluster id 'j-0' is not valid"):
        getattr(emr.api, operation)(**given)


def test_a_cluster_that_has_ended_takes_no_steps_and_no_new_size(emr):
    cluster = emr.ready(1)
    group = emr.group(cluster)["Id"]
    emr.api.terminate_job_flows(JobFlowIds=[cluster])
    emr.ended(cluster)
    with pytest.raises(ClientError, match="TERMINATED"):
        emr.api.add_job_flow_steps(JobFlowId=cluster, Steps=[command("true")])
    with pytest.raises(ClientError, match="TERMINATED"):
        emr.api.modify_instance_groups(InstanceGroups=[{"InstanceGroupId": group, "InstanceCount": 3}])


def test_a_role_needs_the_right_to_pass_both_roles(emr):
    iam = emr.cloud.client("iam")
    role = name("person")
    root = {"AWS": f"arn:aws:iam::{emr.cloud.context.account}:root"}
    trusting = {"Statement": [{"Effect": "Allow", "Principal": root, "Action": "sts:AssumeRole"}]}
    iam.create_role(RoleName=role, AssumeRolePolicyDocument=json.dumps(trusting))
    allow(iam, role, "elasticmapreduce:*")
    person = as_role(emr, role)
    with pytest.raises(ClientError, match=r"not authorized to perform: iam:PassRole on resource: .*EMR_DefaultRole"):
        person.run_job_flow(**request(emr.subnet, 0))
    statements = [
        {"Effect": "Allow", "Action": action, "Resource": "*"} for action in ("iam:PassRole", "elasticmapreduce:*")
    ]
    iam.put_role_policy(RoleName=role, PolicyName="allow", PolicyDocument=json.dumps({"Statement": statements}))
    assert person.run_job_flow(**request(emr.subnet, 0))["JobFlowId"]


def as_role(emr: Emr, role: str) -> Any:
    """Return a client with a session of this role."""
    arn = f"arn:aws:iam::{emr.cloud.context.account}:role/{role}"
    found = emr.cloud.client("sts").assume_role(RoleArn=arn, RoleSessionName="me")["Credentials"]
    return emr.cloud.client_of("emr", found)
