"""Every operation of AWS's models for the services in use: an answer, a refusal, or "not served" by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError
from fleet_fakes import forget_resources
from stack_fakes import Stacks, stacks

from localcloud.api.served import table
from localcloud.iam import errors

# boto3's names of the services, and IAM's where they differ.
SERVICES = {name: name for name in ("autoscaling", "cloudformation", "dynamodb", "ec2", "iam", "lambda", "logs", "s3")}
SERVICES |= {
    "efs": "elasticfilesystem",
    "sns": "sns",
    "sqs": "sqs",
    "ssm": "ssm",
    "sts": "sts",
    "emr": "elasticmapreduce",
    "fsx": "fsx",
    "resourcegroupstaggingapi": "tag",
}
# botocore does not sign the first two, signs the next two for another service, and has a newer name for the others.
OTHERS = {"AssumeRoleWithSAML", "AssumeRoleWithWebIdentity", "ListDirectoryBuckets", "WriteGetObjectResponse"}
OTHERS |= {"PutBucketLifecycle", "PutBucketNotification"}
SCALARS = {"integer": 1, "long": 1, "float": 1.0, "double": 1.0, "boolean": False, "timestamp": 0, "blob": b"x"}


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stacks]:
    with stacks(tmp_path_factory.mktemp("state")) as running:
        yield running
        forget_resources(running.context.account)


def least(shape: Any, depth: int = 0) -> Any:
    """Return the smallest value that fits botocore's shape."""
    rules = shape.metadata
    if shape.type_name == "structure":
        return {name: least(shape.members[name], depth + 1) for name in shape.required_members if depth < 6}
    if shape.type_name == "list":
        return [least(shape.member, depth + 1)] * (rules.get("min") or 1)
    if shape.type_name == "map":
        return {}
    if shape.type_name == "string":
        return rules["enum"][0] if "enum" in rules else "x" * max(rules.get("min", 0), 1)
    return rules.get("min", SCALARS[shape.type_name])


@pytest.mark.parametrize(
    ("service", "operation", "kind"),
    [
        ("logs", "describe_log_groups", "application/x-amz-json-1.1"),
        ("lambda", "list_functions", "application/json"),
        ("ec2", "describe_vpcs", "text/xml"),
    ],
)
def test_an_answer_has_the_type_of_its_protocol_and_an_id(cloud: Stacks, service: str, operation: str, kind: str):
    answered = getattr(cloud.client(service), operation)()["ResponseMetadata"]["HTTPHeaders"]
    assert answered["content-type"] == kind
    assert answered["x-amzn-requestid"]


@pytest.mark.parametrize(
    ("operation", "given", "what"),
    [
        ("CreateVpc", {"CidrBlock": "10.0.0.0/16", "AmazonProvidedIpv6CidrBlock": True}, "AmazonProvidedIpv6CidrBlock"),
        ("CreateSubnet", {"VpcId": "vpc-1", "Ipv6CidrBlock": "2001:db8::/64"}, "Ipv6CidrBlock"),
        ("ModifySubnetAttribute", {"SubnetId": "s", "AssignIpv6AddressOnCreation": {"Value": True}}, "AssignIpv6Addr"),
        ("RunInstances", {"MinCount": 1, "MaxCount": 1, "Ipv6AddressCount": 1}, "Ipv6AddressCount"),
        ("CreateRoute", {"RouteTableId": "rtb-1", "VpcPeeringConnectionId": "pcx-1"}, "VpcPeeringConnectionId"),
        ("CreateVpcPeeringConnection", {"VpcId": "vpc-1", "PeerVpcId": "vpc-2"}, "CreateVpcPeeringConnection"),
        ("CreateEgressOnlyInternetGateway", {"VpcId": "vpc-1"}, "CreateEgressOnlyInternetGateway"),
    ],
)
def test_peering_and_ipv6_are_refused_by_name(cloud: Stacks, operation: str, given: dict[str, Any], what: str):
    with pytest.raises(ClientError, match=f"UnsupportedOperation.*does not serve .*{what}"):
        cloud.plain_client("ec2")._make_api_call(operation, given)


def test_what_turns_ipv6_off_is_no_request_for_it(cloud: Stacks):
    made = cloud.client("ec2").create_vpc(CidrBlock="10.9.0.0/16", AmazonProvidedIpv6CidrBlock=False)
    cloud.client("ec2").delete_vpc(VpcId=made["Vpc"]["VpcId"])


# To describe all types takes as long as all other operations of EC2 together.
FEW = {"DescribeInstanceTypes": {"InstanceTypes": ["c5.large"]}}


def answers(client: Any, given: bool) -> dict[str, tuple[int, str, str]]:
    """Call every operation, with the least parameters or without those; return each one's status, code and message."""
    found = {}
    for operation in client.meta.service_model.operation_names:
        shape = client.meta.service_model.operation_model(operation).input_shape
        needed = least(shape) if shape else {}
        if not given and not needed:
            continue  # it is called with the least parameters, which are none
        try:
            client._make_api_call(operation, {**needed, **FEW.get(operation, {})} if given else {})
            found[operation] = (200, "", "")
        except ClientError as error:
            about = error.response["Error"]
            found[operation] = error.response["ResponseMetadata"]["HTTPStatusCode"], about["Code"], about["Message"]
        except (ValueError, KeyError, TypeError):
            continue  # botocore can't write the request: a path without its bucket or function
    return found


def is_answered(service: str, operation: str) -> bool:
    return operation in OTHERS or table.is_served(SERVICES[service], operation)


@pytest.mark.parametrize("given", [True, False], ids=["least", "none"])
@pytest.mark.parametrize("service", SERVICES)
def test_an_operation_answers_as_on_aws_or_says_that_it_is_not_served(cloud, service, given):
    found = answers(cloud.plain_client(service), given)
    # Without a bucket or a key, no request to S3 can be written.
    assert found or (service, given) == ("s3", False)
    assert {name: what for name, what in found.items() if what[0] >= 500} == {}
    named = f"The local cloud does not serve {SERVICES[service]}:{{}}."
    unserved = {name: what[1:] for name, what in found.items() if not is_answered(service, name)}
    assert unserved == {name: (errors.NOT_SERVED, named.format(name)) for name in unserved}
