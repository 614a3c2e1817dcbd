"""The waiters of the AWS CLI and of boto3: each sees what it waits for, or the table says why nothing here ends it."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from typing import Any

import account
import botocore.session
import pytest
from botocore import xform_name
from botocore.exceptions import UnknownServiceError
from emr_fakes import Emr, command
from fleet_fakes import IMAGE
from fleet_fakes import name as unique
from stack_fakes import TOPIC, Stacks
from test_served import SERVICES

# What the local cloud does not make, by the names of the waiters for it.
NOTHING_MADE = {
    "cloudformation": "StackImportComplete StackRefactor.* TypeRegistrationComplete",
    "dynamodb": "BulkOperationCompleted ContributorInsightsEnabled ExportCompleted ImportCompleted Kinesis.*",
    "ec2": """BundleTask.* ConversionTask.* CustomerGateway.* ExportTask.* ImageUsageReport.* PasswordDataAvailable
        Secondary.* SecurityGroupVpcAssociation.* Snapshot.* SpotInstanceRequest.* StoreImageTask.* VpcPeering.*Exists
        Vpn.*""",
    "ssm": "CommandExecuted",
}

Made = dict[str, Any]
Wish = Callable[[Stacks, Made], Made]


@pytest.fixture(scope="module")
def made(cloud: Stacks) -> Made:
    return {**account.furnished(cloud), "emr": Emr(cloud)}


def waiters() -> list[tuple[str, str]]:
    """Return (service, waiter) of all services that the tests of served operations name."""
    load = botocore.session.get_session().get_component("data_loader").load_service_model
    found = []
    for service in SERVICES:
        with contextlib.suppress(UnknownServiceError):
            found += [(service, name) for name in load(service, "waiters-2")["waiters"]]
    return found


def reachable() -> list[tuple[str, str]]:
    return [
        (service, name)
        for service, name in waiters()
        if not any(re.fullmatch(one, name) for one in NOTHING_MADE.get(service, "").split())
    ]


@pytest.mark.parametrize(("service", "name"), reachable())
def test_a_waiter_sees_what_it_waits_for(cloud: Stacks, made: Made, service: str, name: str):
    asked = WISHES[service, name](cloud, made)
    waiter = cloud.client(service).get_waiter(xform_name(name))
    waiter.wait(**asked, WaiterConfig={"Delay": 0.05, "MaxAttempts": 200})


def changed_stack(body: Made, **events: str) -> Wish:
    """Wish for a stack that is being changed to `body`."""

    def wish(cloud: Stacks, _made: Made) -> Made:
        stack = cloud.made({"Topic": TOPIC})
        cloud.cloudformation.update_stack(StackName=stack, TemplateBody=json.dumps({"Resources": body}), **events)
        return {"StackName": stack}

    return wish


def deleted_stack(cloud: Stacks, _made: Made) -> Made:
    stack = cloud.made({"Topic": TOPIC}, StackName="soon-gone")
    cloud.cloudformation.delete_stack(StackName=stack)
    return {"StackName": "soon-gone"}


def change_set(cloud: Stacks, made: Made) -> Made:
    given = {"StackName": "changing", "ChangeSetName": "first", "ChangeSetType": "CREATE"}
    cloud.cloudformation.create_change_set(**given, TemplateBody=made["template_body"])
    return {"StackName": "changing", "ChangeSetName": "first"}


def instance(cloud: Stacks, made: Made, **more: Any) -> str:
    """Launch an instance, which is pending at first; return its id."""
    asked = {"ImageId": IMAGE, "InstanceType": "c5.large", "MinCount": 1, "MaxCount": 1, "SubnetId": made["subnet"]}
    return cloud.client("ec2").run_instances(**asked, **more)["Instances"][0]["InstanceId"]


def started(cloud: Stacks, made: Made) -> Made:
    return {"InstanceIds": [instance(cloud, made)]}


def running(cloud: Stacks, made: Made) -> str:
    launched = instance(cloud, made)
    waiter = cloud.client("ec2").get_waiter("instance_running")
    waiter.wait(InstanceIds=[launched], WaiterConfig={"Delay": 0.05, "MaxAttempts": 200})
    return launched


def ended(cloud: Stacks, made: Made) -> Made:
    launched = running(cloud, made)
    cloud.client("ec2").terminate_instances(InstanceIds=[launched])
    return {"InstanceIds": [launched]}


def stopped(cloud: Stacks, made: Made) -> Made:
    launched = running(cloud, made)
    cloud.client("ec2").stop_instances(InstanceIds=[launched])
    return {"InstanceIds": [launched]}


def volume_of(cloud: Stacks, launched: str) -> str:
    of = [{"Name": "attachment.instance-id", "Values": [launched]}]
    return cloud.client("ec2").describe_volumes(Filters=of)["Volumes"][0]["VolumeId"]


def used_volume(cloud: Stacks, made: Made) -> Made:
    return {"VolumeIds": [volume_of(cloud, made["instance"])]}


def ended_volume(keep: bool) -> Wish:
    """Wish for the root volume of an instance that ends, and that it keeps, or not."""

    def wish(cloud: Stacks, made: Made) -> Made:
        disk = {"DeviceName": "/dev/sda1", "Ebs": {"DeleteOnTermination": not keep}}
        launched = instance(cloud, made, BlockDeviceMappings=[disk])
        volume = volume_of(cloud, launched)
        cloud.client("ec2").terminate_instances(InstanceIds=[launched])
        return {"VolumeIds": [volume]}

    return wish


def nat_gateway(cloud: Stacks, made: Made) -> Made:
    address = cloud.client("ec2").allocate_address(Domain="vpc")["AllocationId"]
    gateway = cloud.client("ec2").create_nat_gateway(SubnetId=made["subnet"], AllocationId=address)["NatGateway"]
    return {"NatGatewayIds": [gateway["NatGatewayId"]]}


def deleted_nat_gateway(cloud: Stacks, made: Made) -> Made:
    found = nat_gateway(cloud, made)
    cloud.client("ec2").delete_nat_gateway(NatGatewayId=found["NatGatewayIds"][0])
    return found


def interface(cloud: Stacks, made: Made) -> Made:
    card = cloud.client("ec2").create_network_interface(SubnetId=made["subnet"])["NetworkInterface"]
    return {"NetworkInterfaceIds": [card["NetworkInterfaceId"]]}


def table(cloud: Stacks, _made: Made) -> Made:
    key = {"KeySchema": [{"AttributeName": "id", "KeyType": "HASH"}], "BillingMode": "PAY_PER_REQUEST"}
    keys = [{"AttributeName": "id", "AttributeType": "S"}]
    made = cloud.client("dynamodb").create_table(TableName=unique("table"), AttributeDefinitions=keys, **key)
    return {"TableName": made["TableDescription"]["TableName"]}


def deleted_table(cloud: Stacks, made: Made) -> Made:
    found = table(cloud, made)
    cloud.client("dynamodb").delete_table(**found)
    return found


def new_function(cloud: Stacks, made: Made) -> Made:
    given = {"Runtime": "python3.12", "Role": made["lambda_role"], "Handler": "index.handler"}
    cloud.client("lambda").create_function(FunctionName="waited", Code={"ZipFile": made["code"]}, **given)
    return {"FunctionName": "waited"}


def new_code(cloud: Stacks, made: Made) -> Made:
    cloud.client("lambda").update_function_code(FunctionName="function", ZipFile=made["code"])
    return {"FunctionName": "function"}


def new_settings(cloud: Stacks, _made: Made) -> Made:
    cloud.client("lambda").update_function_configuration(FunctionName="function", Timeout=9)
    return {"FunctionName": "function"}


def version(cloud: Stacks, _made: Made) -> Made:
    published = cloud.client("lambda").publish_version(FunctionName="function")
    return {"FunctionName": "function", "Qualifier": published["Version"]}


def policy(cloud: Stacks, _made: Made) -> Made:
    return {"PolicyArn": cloud.client("iam").list_policies(Scope="Local")["Policies"][0]["Arn"]}


def user(cloud: Stacks, _made: Made) -> Made:
    cloud.client("iam").create_user(UserName="waited")
    return {"UserName": "waited"}


def object_in_bucket(key: str) -> Made:
    return {"Bucket": "bucket-of-tests", "Key": key}


def waiting_cluster(cloud: Stacks, made: Made) -> Made:
    return {"ClusterId": made["emr"].ready(0)}


def ended_cluster(cloud: Stacks, made: Made) -> Made:
    found = waiting_cluster(cloud, made)
    cloud.client("emr").terminate_job_flows(JobFlowIds=[found["ClusterId"]])
    return found


def done_step(_cloud: Stacks, made: Made) -> Made:
    cluster = made["emr"].ready(0, Steps=[command("true")])
    (master,) = made["emr"].instances(cluster)
    step = made["emr"].report(master, "next")["step"]
    made["emr"].report(master, "done", step=step["id"], code=0)
    return {"ClusterId": cluster, "StepId": step["id"]}


def always(**asked: Any) -> Wish:
    return lambda _cloud, _made: asked


def known(parameter: str, what: str) -> Wish:
    """Wish for something of the furnished account."""
    return lambda _cloud, made: {parameter: [made[what]]}


WISHES: dict[tuple[str, str], Wish] = {
    ("cloudformation", "StackExists"): always(StackName="stack"),
    ("cloudformation", "StackCreateComplete"): lambda cloud, _made: {"StackName": cloud.create({"Topic": TOPIC})},
    ("cloudformation", "StackDeleteComplete"): deleted_stack,
    ("cloudformation", "StackUpdateComplete"): changed_stack({"Topic": TOPIC, "Other": TOPIC}),
    ("cloudformation", "StackRollbackComplete"): changed_stack(
        {"Topic": TOPIC, "Queue": {"Type": "AWS::SQS::Queue", "Properties": {"KmsMasterKeyId": "alias/nobodys"}}}
    ),
    ("cloudformation", "ChangeSetCreateComplete"): change_set,
    ("dynamodb", "TableExists"): table,
    ("dynamodb", "TableNotExists"): deleted_table,
    ("ec2", "InstanceExists"): started,
    ("ec2", "InstanceRunning"): started,
    ("ec2", "InstanceStatusOk"): started,
    ("ec2", "SystemStatusOk"): started,
    ("ec2", "InstanceStopped"): stopped,
    ("ec2", "InstanceTerminated"): ended,
    ("ec2", "ImageExists"): always(ImageIds=[IMAGE]),
    ("ec2", "ImageAvailable"): always(ImageIds=[IMAGE]),
    ("ec2", "InternetGatewayExists"): known("InternetGatewayIds", "gateway"),
    ("ec2", "KeyPairExists"): always(KeyNames=["mine"]),
    ("ec2", "NatGatewayAvailable"): nat_gateway,
    ("ec2", "NatGatewayDeleted"): deleted_nat_gateway,
    ("ec2", "NetworkInterfaceAvailable"): interface,
    ("ec2", "SecurityGroupExists"): known("GroupIds", "used_group"),
    ("ec2", "SubnetAvailable"): known("SubnetIds", "subnet"),
    ("ec2", "VolumeAvailable"): ended_volume(keep=True),
    ("ec2", "VolumeDeleted"): ended_volume(keep=False),
    ("ec2", "VolumeInUse"): used_volume,
    ("ec2", "VpcAvailable"): known("VpcIds", "vpc"),
    ("ec2", "VpcExists"): known("VpcIds", "vpc"),
    ("ec2", "VpcPeeringConnectionDeleted"): always(VpcPeeringConnectionIds=["pcx-01234567890abcdef"]),
    ("emr", "ClusterRunning"): waiting_cluster,
    ("emr", "ClusterTerminated"): ended_cluster,
    ("emr", "StepComplete"): done_step,
    ("iam", "InstanceProfileExists"): always(InstanceProfileName="profile"),
    ("iam", "UserExists"): user,
    ("iam", "RoleExists"): always(RoleName="role"),
    ("iam", "PolicyExists"): policy,
    ("lambda", "FunctionExists"): always(FunctionName="function"),
    ("lambda", "FunctionActive"): new_function,
    ("lambda", "FunctionActiveV2"): always(FunctionName="function"),
    ("lambda", "FunctionUpdated"): new_code,
    ("lambda", "FunctionUpdatedV2"): new_settings,
    ("lambda", "PublishedVersionActive"): version,
    ("s3", "BucketExists"): always(Bucket="bucket-of-tests"),
    ("s3", "BucketNotExists"): always(Bucket="nobodys-bucket"),
    ("s3", "ObjectExists"): always(**object_in_bucket("a")),
    ("s3", "ObjectNotExists"): always(**object_in_bucket("b")),
}
