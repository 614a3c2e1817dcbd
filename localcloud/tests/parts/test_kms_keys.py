"""Keys of KMS in the local cloud: who may not use one is refused, as on AWS (docs/aws-behaviour.md 6.7)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError
from fleet_fakes import name, until
from stack_fakes import Stacks, stacks

ACCOUNT, REGION = "123456789012", "us-east-1"
ROOT = {"Effect": "Allow", "Principal": {"AWS": f"arn:aws:iam::{ACCOUNT}:root"}, "Action": "kms:*", "Resource": "*"}
SCALING = f"arn:aws:iam::{ACCOUNT}:role/aws-service-role/autoscaling.amazonaws.com/AWSServiceRoleForAutoScaling"
TRUST = {"Effect": "Allow", "Principal": {"AWS": f"arn:aws:iam::{ACCOUNT}:root"}, "Action": "sts:AssumeRole"}


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stacks]:
    with stacks(tmp_path_factory.mktemp("state")) as running:
        yield running


def key(cloud: Stacks, *statements: dict[str, Any]) -> str:
    document = {"Version": "2012-10-17", "Statement": [ROOT, *statements]}
    return cloud.client("kms").create_key(Policy=json.dumps(document))["KeyMetadata"]["Arn"]


def allowing(*actions: str, **principal: str) -> dict[str, Any]:
    return {"Effect": "Allow", "Principal": principal, "Action": [f"kms:{one}" for one in actions], "Resource": "*"}


def why(cloud: Stacks, kind: str, properties: dict[str, Any], **given: Any) -> str:
    """Return why a stack of one resource fails; "" if it does not."""
    stack = cloud.create({"One": {"Type": kind, "Properties": properties}}, **given)
    if cloud.settled(stack) == "CREATE_COMPLETE":
        cloud.deleted(stack)
        return ""
    return cloud.reason(stack, "One", "CREATE_FAILED")


def session(cloud: Stacks, *statements: dict[str, Any]) -> Any:
    iam, called = cloud.client("iam"), name("role")
    trust = json.dumps({"Version": "2012-10-17", "Statement": [TRUST]})
    arn = iam.create_role(RoleName=called, AssumeRolePolicyDocument=trust)["Role"]["Arn"]
    document = json.dumps({"Version": "2012-10-17", "Statement": [*statements]})
    iam.put_role_policy(RoleName=called, PolicyName="p", PolicyDocument=document)
    keys = cloud.client("sts").assume_role(RoleArn=arn, RoleSessionName="me")["Credentials"]
    return lambda service: cloud.client_of(service, keys)


def refused(call: Any, **arguments: Any) -> str:
    with pytest.raises(ClientError) as error:
        call(**arguments)
    return error.value.response["Error"]["Message"]


def test_a_log_group_takes_a_key_whose_policy_names_its_service(cloud):
    logs = allowing("Encrypt", "Decrypt", "GenerateDataKey*", Service=f"logs.{REGION}.amazonaws.com")
    refusal = why(cloud, "AWS::Logs::LogGroup", {"KmsKeyId": key(cloud)})
    assert "The specified KMS key does not exist or is not allowed to be used with Arn" in refusal
    assert why(cloud, "AWS::Logs::LogGroup", {"KmsKeyId": key(cloud, logs)}) == ""


@pytest.mark.parametrize(
    ("kind", "properties"),
    [
        ("AWS::SNS::Topic", lambda one: {"KmsMasterKeyId": one}),
        ("AWS::SQS::Queue", lambda one: {"KmsMasterKeyId": one}),
        ("AWS::EFS::FileSystem", lambda one: {"Encrypted": True, "KmsKeyId": one}),
    ],
)
def test_a_key_must_exist_and_be_enabled(cloud, kind, properties):
    off = key(cloud)
    cloud.client("kms").disable_key(KeyId=off.rpartition("/")[2])
    missing = f"arn:aws:kms:{REGION}:{ACCOUNT}:key/11111111-2222-3333-4444-555555555555"
    assert "does not exist" in why(cloud, kind, properties(missing))
    assert "is disabled" in why(cloud, kind, properties(off))
    assert why(cloud, kind, properties(key(cloud))) == ""


def test_what_a_stack_encrypts_takes_its_caller_s_rights_on_the_key_through_the_service(cloud):
    used = key(cloud)
    files = {"Effect": "Allow", "Action": ["cloudformation:*", "elasticfilesystem:*"], "Resource": "*"}
    through = {"StringEquals": {"kms:ViaService": f"elasticfilesystem.{REGION}.amazonaws.com"}}
    keys = {"Effect": "Allow", "Action": "kms:*", "Resource": used, "Condition": through}
    body = {"Resources": {"One": {"Type": "AWS::EFS::FileSystem", "Properties": {"KmsKeyId": used, "Encrypted": True}}}}
    for statements, status in (([files], "ROLLBACK_COMPLETE"), ([files, keys], "CREATE_COMPLETE")):
        api = session(cloud, *statements)("cloudformation")
        stack = api.create_stack(StackName=name("stack"), TemplateBody=json.dumps(body))["StackId"]
        assert cloud.settled(stack) == status


def test_whoever_sends_and_reads_needs_the_key_as_well(cloud):
    used = key(cloud)
    url = cloud.client("sqs").create_queue(QueueName=name("q"), Attributes={"KmsMasterKeyId": used})["QueueUrl"]
    topic = cloud.client("sns").create_topic(Name=name("t"), Attributes={"KmsMasterKeyId": used})["TopicArn"]
    table = name("table")
    cloud.client("dynamodb").create_table(
        TableName=table,
        AttributeDefinitions=[{"AttributeName": "item", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "item", "KeyType": "HASH"}],
        BillingMode="PAY_PER_REQUEST",
        SSESpecification={"Enabled": True, "SSEType": "KMS", "KMSMasterKeyId": used},
    )
    services = {"Effect": "Allow", "Action": ["sqs:*", "sns:*", "dynamodb:*"], "Resource": "*"}
    reads = {"Effect": "Allow", "Action": "kms:Decrypt", "Resource": used}
    sends = {"Effect": "Allow", "Action": ["kms:Decrypt", "kms:GenerateDataKey"], "Resource": used}
    nobody, reader, sender = (session(cloud, services, *more) for more in ((), (reads,), (sends,)))
    item = {"TableName": table, "Key": {"item": {"S": "x"}}}
    assert "kms:GenerateDataKey" in refused(reader("sqs").send_message, QueueUrl=url, MessageBody="x")
    assert "kms:Decrypt" in refused(nobody("sqs").receive_message, QueueUrl=url)
    assert "kms:GenerateDataKey" in refused(reader("sns").publish, TopicArn=topic, Message="x")
    assert "kms:Decrypt" in refused(nobody("dynamodb").get_item, **item)
    sender("sqs").send_message(QueueUrl=url, MessageBody="x")
    assert reader("sqs").receive_message(QueueUrl=url)["Messages"]
    sender("sns").publish(TopicArn=topic, Message="x")
    reader("dynamodb").get_item(**item)


@pytest.mark.parametrize("may", [True, False])
def test_sns_delivers_to_an_encrypted_queue_only_if_it_may_use_its_key(cloud, may):
    own = [allowing("GenerateDataKey*", "Decrypt", Service="sns.amazonaws.com")] if may else []
    sns, sqs = cloud.client("sns"), cloud.client("sqs")
    topic = sns.create_topic(Name=name("t"))["TopicArn"]
    anybody = {"Effect": "Allow", "Principal": "*", "Action": "sqs:SendMessage", "Resource": "*"}
    given = {"KmsMasterKeyId": key(cloud, *own), "Policy": json.dumps({"Statement": [anybody]})}
    url = sqs.create_queue(QueueName=name("q"), Attributes=given)["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn)
    sns.publish(TopicArn=topic, Message="x")
    assert bool(sqs.receive_message(QueueUrl=url).get("Messages")) == may


@pytest.mark.parametrize("way", ["nobody", "policy", "grant", "AWS's own"])
def test_auto_scaling_launches_with_a_key_that_its_own_role_may_use(cloud, way):
    named = ["Encrypt", "Decrypt", "ReEncrypt*", "GenerateDataKey*", "DescribeKey", "CreateGrant"]
    used = key(cloud, *([allowing(*named, AWS=SCALING)] if way == "policy" else []))
    if way == "grant":
        operations = ["Encrypt", "Decrypt", "GenerateDataKeyWithoutPlaintext", "DescribeKey", "CreateGrant"]
        cloud.client("kms").create_grant(KeyId=used, GranteePrincipal=SCALING, Operations=operations)
    ec2, called = cloud.client("ec2"), name("group")
    of_type = [{"Name": "architecture", "Values": ["x86_64"]}]
    image = ec2.describe_images(Owners=["amazon"], Filters=of_type)["Images"][0]
    disk = {
        "DeviceName": image["RootDeviceName"],
        "Ebs": {"Encrypted": True} if way == "AWS's own" else {"KmsKeyId": used, "Encrypted": True},
    }
    data = {"ImageId": image["ImageId"], "InstanceType": "m5.large", "BlockDeviceMappings": [disk]}
    ec2.create_launch_template(LaunchTemplateName=called, LaunchTemplateData=data)
    scaling = cloud.client("autoscaling")
    template = {"LaunchTemplateName": called, "Version": "$Latest"}
    where = {"MinSize": 1, "MaxSize": 1, "AvailabilityZones": [f"{REGION}a"], "LaunchTemplate": template}
    scaling.create_auto_scaling_group(AutoScalingGroupName=called, **where)
    mine = [{"Name": "tag:aws:autoscaling:groupName", "Values": [called]}]

    def states() -> set[str]:
        found = ec2.describe_instances(Filters=mine)["Reservations"]
        return {one["State"]["Name"] for reservation in found for one in reservation["Instances"]}

    until(lambda: states() & ({"shutting-down", "terminated"} if way == "nobody" else {"running"}), way)
    scaling.delete_auto_scaling_group(AutoScalingGroupName=called, ForceDelete=True)
