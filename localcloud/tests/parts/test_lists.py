"""Every list that is served: the filters that AWS's models document, and pages of the size that was asked for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import account
import botocore.session
import jmespath
import pytest
from botocore import xform_name
from botocore.exceptions import ClientError
from fleet_fakes import forget_resources
from stack_fakes import Stacks, stacks
from test_served import SERVICES, least

from localcloud.api.served import lists, operations, table
from localcloud.iam.calls import Call

# Filters about what answers do not contain, which are refused by name, and values that the texts of AWS's models list.
REFUSED = re.compile(
    r"(informational|low|medium|high|critical|manifest-location|launch-index|reason|product-code.type|group-id)"
    r"|instance-(type-specification|storage-info)\..*|.*ipv6-.*|.*http-protocol-ipv4|entry\..*|.*prefix-list-id"
    r"|.*association\.(allocation-id|association-id|owner-id)|last-tiering-operation|is-classic-link-enabled"
    r"|network-interface\.(attachment|availability-zone|deny|outpost|requester|tag).*|service-name"
)
# An answer of all types takes half a second.
LONG = ("DescribeInstanceTypes",)
IGNORED = {"DescribeInstanceStatus", "DescribeTags", "DescribeVpcEndpointServices"}


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stacks]:
    with stacks(tmp_path_factory.mktemp("state")) as running:
        account.furnished(running)
        more(running)
        yield running
        forget_resources(running.context.account)


def more(cloud: Stacks) -> None:
    """Make several of what has pages."""
    iam, ec2 = cloud.client("iam"), cloud.client("ec2")
    for number in range(3):
        iam.put_role_policy(
            RoleName="role", PolicyName=f"more-{number}", PolicyDocument=account.json.dumps(account.ALLOW)
        )
        iam.create_instance_profile(InstanceProfileName=f"more-{number}")
        ec2.create_launch_template(LaunchTemplateName=f"more-{number}", LaunchTemplateData={"InstanceType": "c5.large"})
        cloud.client("logs").create_log_stream(logGroupName="logs", logStreamName=f"more-{number}")
        cloud.client("sns").create_topic(Name=f"more-{number}")
        cloud.client("sqs").create_queue(QueueName=f"more-{number}")
        cloud.client("ssm").put_parameter(Name=f"/more/{number}", Value="a", Type="String")


def of_ec2() -> list[str]:
    model = botocore.session.get_session().get_service_model("ec2")
    shapes = {name: model.operation_model(name).input_shape for name in model.operation_names}
    return [
        name
        for name, shape in shapes.items()
        if table.is_served("ec2", name) and shape and "Filters" in shape.members and name not in LONG
    ]


@pytest.mark.long
@pytest.mark.parametrize("operation", of_ec2())
def test_no_filter_that_aws_documents_is_ignored_and_few_are_refused(cloud: Stacks, operation: str):
    client = cloud.plain_client("ec2")
    shape = client.meta.service_model.operation_model(operation).input_shape
    given = least(shape)
    try:
        whole = count(client._make_api_call(operation, given))
    except ClientError:
        return
    named = re.findall(r"<li>\s*<p>\s*<code>([a-z][\w.-]*)</code>", shape.members["Filters"].documentation)
    for name in set(named) - {"tag"} if whole and operation not in IGNORED else ():
        filters = [{"Name": name, "Values": ["nobodys"]}]
        try:
            assert count(client._make_api_call(operation, {**given, "Filters": filters})) == 0, name
        except ClientError as error:
            assert REFUSED.fullmatch(name), error


def count(answer: dict[str, Any]) -> int:
    return sum(len(value) for value in answer.values() if isinstance(value, list))


def found(client: Any, name: str, *values: str) -> int:
    pages = client.get_paginator("describe_instances").paginate(Filters=[{"Name": name, "Values": list(values)}])
    return sum(len(one["Instances"]) for page in pages for one in page["Reservations"])


def test_filters_find_what_the_answer_contains(cloud: Stacks):
    ec2 = cloud.client("ec2")
    everything = found(ec2, "instance-state-name", "running")
    assert everything
    assert found(ec2, "metadata-options.http-endpoint", "enabled") == everything
    assert found(ec2, "instance-state-code", "16") == everything
    assert found(ec2, "network-interface.addresses.private-ip-address", "10.0.*") == everything
    assert found(ec2, "network-interface.addresses.private-ip-address", "10.9.*") == 0
    assert found(ec2, "block-device-mapping.delete-on-termination", "false") == 0
    zones = ec2.describe_availability_zones(Filters=[{"Name": "opt-in-status", "Values": ["opted-in"]}])
    assert [one["ZoneType"] for one in zones["AvailabilityZones"]] == ["local-zone"]


@pytest.mark.parametrize(
    ("operation", "name", "is_known"),
    [
        # As SkyPilot asks, and AWS answers.
        ("DescribeVpcs", "isDefault", True),
        ("DescribeSubnets", "defaultForAz", True),
        ("DescribeVpcs", "isdefault", False),
        ("DescribeVpcs", "tag:Name", True),
        ("DescribeTransitGateways", "tag:Name", True),
        ("DescribeVpcs", "colour", False),
        # It takes no filters.
        ("DescribeAccountAttributes", "colour", True),
    ],
)
def test_only_filters_that_the_operation_does_not_have_are_unknown(operation: str, name: str, is_known: bool):
    call = SimpleNamespace(protocol="ec2", params={"Filter.1.Name": name, "Filter.1.Value.1": "red"})
    unknown = lists.unknown_filter(cast("Call", call), operations.named("ec2", operation))
    assert unknown == ("" if is_known else name)


def test_pages_are_cut_after_the_filters_and_lose_nothing(cloud: Stacks):
    vpcs = {"Name": "vpc-id", "Values": ["vpc-*"]}
    filters, ec2 = [{"Name": "subnet-arn", "Values": ["arn:aws:*"]}, vpcs], cloud.client("ec2")
    asked = {"Filters": filters, "PaginationConfig": {"PageSize": 5}}
    pages = [page["Subnets"] for page in ec2.get_paginator("describe_subnets").paginate(**asked)]
    there = {one["SubnetId"] for one in ec2.describe_subnets(Filters=filters)["Subnets"]}
    assert len(there) >= 10 and {one["SubnetId"] for page in pages for one in page} == there
    assert [len(page) for page in pages[:-1]] == [5] * ((len(there) - 1) // 5)
    assert sum(map(len, pages)) == len(there)
    names = (
        cloud.client("iam")
        .get_paginator("list_role_policies")
        .paginate(RoleName="role", PaginationConfig={"PageSize": 3})
    )
    assert [page["PolicyNames"] for page in names] == [["inline", "more-0", "more-1"], ["more-2"]]


def paged() -> list[tuple[str, str, dict[str, Any]]]:
    load = botocore.session.get_session().get_component("data_loader").load_service_model
    models = {client: load(client, "paginators-1")["pagination"] for client in SERVICES if client not in ("s3", "sts")}
    return [
        (client, operation, pages)
        for client, operations in models.items()
        for operation, pages in operations.items()
        if table.is_served(SERVICES[client], operation) and "limit_key" in pages and operation not in LONG
    ]


def test_a_token_that_no_answer_has_given_is_refused_in_the_services_words(cloud: Stacks):
    # docs/aws-behaviour.md 2.80
    asked = {
        ("ec2", "DescribeVpcs", "NextToken"): (
            "InvalidParameterValue",
            "Value ( nobodys ) for parameter NextToken is invalid. The token is invalid.",
        ),
        ("autoscaling", "DescribeTags", "NextToken"): ("InvalidNextToken", "The token 'nobodys' was invalid"),
        ("logs", "DescribeLogGroups", "nextToken"): (
            "InvalidParameterException",
            "The specified nextToken is invalid.",
        ),
    }
    for (client, operation, name), (code, message) in asked.items():
        with pytest.raises(ClientError) as refused:
            cloud.plain_client(client)._make_api_call(operation, {name: "nobodys"})
        assert (refused.value.response["Error"]["Code"], refused.value.response["Error"]["Message"]) == (code, message)


def test_answers_have_the_members_that_moto_leaves_out(cloud: Stacks):
    # docs/aws-behaviour.md 2.81
    groups = cloud.client("logs").describe_log_groups()["logGroups"]
    assert groups and {one["logGroupClass"] for one in groups} == {"STANDARD"}
    described = [cloud.client("dynamodb").describe_table(TableName="table")["Table"]["TableId"] for _ in range(2)]
    assert described[0] == described[1]
    rules = cloud.client("ec2").describe_security_group_rules()["SecurityGroupRules"]
    assert rules and all(one["SecurityGroupRuleArn"].endswith(one["SecurityGroupRuleId"]) for one in rules)
    (made,) = cloud.client("efs").describe_file_systems(MaxItems=1)["FileSystems"]
    assert made["FileSystemProtection"] == {"ReplicationOverwriteProtection": "ENABLED"}


def test_a_full_page_of_a_scan_ends_with_a_key_also_where_it_is_the_last(cloud: Stacks):
    api = cloud.client("dynamodb")
    (key,) = api.describe_table(TableName="table")["Table"]["KeySchema"]
    api.put_item(TableName="table", Item={key["AttributeName"]: {"S": "a"}})
    count = api.scan(TableName="table")["Count"]
    page = api.scan(TableName="table", Limit=count)
    assert page["LastEvaluatedKey"]
    assert api.scan(TableName="table", Limit=count, ExclusiveStartKey=page["LastEvaluatedKey"])["Items"] == []
    assert "LastEvaluatedKey" not in api.scan(TableName="table", Limit=count + 1)


@pytest.mark.long
@pytest.mark.parametrize(("client", "operation", "pages"), paged(), ids=lambda one: one if isinstance(one, str) else "")
def test_no_list_takes_a_token_that_no_answer_has_given(cloud: Stacks, client, operation, pages):
    api = cloud.plain_client(client)
    shape = api.meta.service_model.operation_model(operation).input_shape
    given = {**least(shape), **{key: value for key, value in OF.get(client, {}).items() if key in shape.members}}
    if pages["input_token"].startswith("Exclusive"):
        return  # a name that the caller chooses
    try:
        api._make_api_call(operation, given)
    except ClientError:
        return
    with pytest.raises(ClientError) as refused:
        api._make_api_call(operation, {**given, pages["input_token"]: "nobodys"})
    assert refused.value.response["Error"]["Code"] != "UnsupportedOperation"


# What is asked of lists that belong to something.
OF = {
    "logs": {"logGroupName": "logs"},
    "iam": {"RoleName": "role", "GroupName": "group"},
    "ec2": {"Versions": ["$Latest"]},
    "ssm": {"Path": "/more"},
    "dynamodb": {"TableName": "table"},
    "sns": {},
}


@pytest.mark.long
@pytest.mark.parametrize(("client", "operation", "pages"), paged(), ids=lambda one: one if isinstance(one, str) else "")
def test_pages_have_the_size_that_was_asked_for_and_together_are_the_whole(cloud: Stacks, client, operation, pages):
    api = cloud.plain_client(client)
    shape = api.meta.service_model.operation_model(operation).input_shape
    given = {**least(shape), **{key: value for key, value in OF.get(client, {}).items() if key in shape.members}}
    limit = shape.members[pages["limit_key"]]
    key = pages["result_key"][0] if isinstance(pages["result_key"], list) else pages["result_key"]
    try:
        whole = jmespath.search(key, api._make_api_call(operation, given)) or []
    except ClientError:
        return
    size = max(limit.metadata.get("min", 1), 5 if client == "ec2" else 1, len(whole) // 3)
    asked = {"PageSize": size if limit.type_name != "string" else str(size)}
    answers = [jmespath.search(key, page) or [] for page in paginate(api, operation, given, asked)]
    assert max(map(len, answers)) <= size
    assert sum(map(len, answers)) == len(whole)


def paginate(api: Any, operation: str, given: dict[str, Any], asked: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from api.get_paginator(xform_name(operation)).paginate(**given, PaginationConfig=asked)
