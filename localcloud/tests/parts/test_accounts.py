"""The accounts of companies and of new users, as the API shows them: each in a local cloud of its own."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from fleet_fakes import until
from stack_fakes import stacks

from localcloud import accounts
from localcloud.daemon import endpoint_file

Client = Callable[..., Any]
TRUST = {"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}
ROLE = {"RoleName": "r", "AssumeRolePolicyDocument": json.dumps({"Version": "2012-10-17", "Statement": [TRUST]})}


def localcloud(state: Path, *words: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "localcloud", *words, "--state", str(state)], cwd="/", check=True, timeout=120
    )


def client_of(state: Path) -> Client:
    there = endpoint_file.read(state)
    keys = {"aws_access_key_id": there["access_key_id"], "aws_secret_access_key": there["secret_access_key"]}
    settings = Config(retries={"total_max_attempts": 1}, proxies={})
    return lambda service, region=accounts.REGION: boto3.client(
        service, region_name=region, endpoint_url=there["url"], config=settings, **keys
    )


@pytest.fixture(scope="module")
def company(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    yield from running(tmp_path_factory, "landing-zone")


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    yield from running(tmp_path_factory, "fresh")


def running(tmp_path_factory: pytest.TempPathFactory, profile: str) -> Iterator[Client]:
    state = tmp_path_factory.mktemp("account")
    localcloud(state, "account", profile)
    localcloud(state, "serve")
    yield client_of(state)
    localcloud(state, "stop", "--force")


def code(call: Any, **arguments: Any) -> str:
    with pytest.raises(ClientError) as refused:
        call(**arguments)
    return refused.value.response["Error"]["Code"]


def shared_vpc(company: Client) -> str:
    (vpc,) = {one["VpcId"] for one in company("ec2").describe_subnets(SubnetIds=[*accounts.SUBNETS])["Subnets"]}
    return vpc


def test_subnets_are_shared_by_the_account_that_owns_them(company):
    ec2, vpc = company("ec2"), shared_vpc(company)
    within = [{"Name": "vpc-id", "Values": [vpc]}]
    subnets = ec2.describe_subnets(Filters=within)["Subnets"]
    assert {one["SubnetId"] for one in subnets} == {*accounts.SUBNETS}
    assert {one["OwnerId"] for one in subnets} == {accounts.OWNER}
    assert all(f":{accounts.OWNER}:" in one["SubnetArn"] for one in subnets)
    assert ec2.describe_vpcs(VpcIds=[vpc])["Vpcs"][0]["OwnerId"] == accounts.OWNER


def test_what_the_owner_made_for_them_is_not_seen(company):
    ec2, vpc = company("ec2"), shared_vpc(company)
    tables = ec2.describe_route_tables(Filters=[{"Name": "vpc-id", "Values": [vpc]}])["RouteTables"]
    (nat,) = {route["NatGatewayId"] for table in tables for route in table["Routes"] if "NatGatewayId" in route}
    assert code(ec2.describe_nat_gateways, NatGatewayIds=[nat]) == "NatGatewayNotFound"
    assert ec2.describe_nat_gateways(Filter=[{"Name": "nat-gateway-id", "Values": [nat]}])["NatGateways"] == []
    assert ec2.describe_addresses()["Addresses"] == []
    attached = [{"Name": "attachment.vpc-id", "Values": [vpc]}]
    assert ec2.describe_internet_gateways(Filters=attached)["InternetGateways"] == []


def test_the_organisation_denies_networks_and_roles_without_its_boundary(company):
    ec2, iam, vpc = company("ec2"), company("iam"), shared_vpc(company)
    for call, arguments in (
        (ec2.create_vpc, {"CidrBlock": "10.0.0.0/16"}),
        (ec2.create_internet_gateway, {}),
        (ec2.allocate_address, {"Domain": "vpc"}),
        (ec2.create_subnet, {"VpcId": vpc, "CidrBlock": "10.64.9.0/24"}),
        (ec2.create_vpc_endpoint, {"VpcId": vpc, "ServiceName": "com.amazonaws.us-east-1.s3"}),
    ):
        assert code(call, **arguments) == "UnauthorizedOperation"
    assert code(iam.create_role, **ROLE) == "AccessDenied"
    iam.create_role(**ROLE, PermissionsBoundary=accounts.BOUNDARY)
    ec2.create_security_group(GroupName="mine", Description="of a participant", VpcId=vpc)


def test_the_simulator_shows_what_the_organisation_denies(company, fresh):
    asked = {"ActionNames": ["ec2:CreateVpc", "ec2:CreateSubnet"]}
    asked["PolicySourceArn"] = company("sts").get_caller_identity()["Arn"]
    denied, allowed = company("iam").simulate_principal_policy(**asked)["EvaluationResults"]
    assert (denied["EvalDecision"], denied["OrganizationsDecisionDetail"]) == (
        "explicitDeny",
        {"AllowedByOrganizations": False},
    )
    assert (allowed["EvalDecision"], allowed["OrganizationsDecisionDetail"]) == (
        "allowed",
        {"AllowedByOrganizations": True},
    )
    asked["PolicySourceArn"] = fresh("sts").get_caller_identity()["Arn"]
    (own, _) = fresh("iam").simulate_principal_policy(**asked)["EvaluationResults"]
    assert own["EvalDecision"] == "allowed"
    assert "OrganizationsDecisionDetail" not in own


def test_a_new_account_s_keys_are_unknown_in_regions_that_it_has_not_enabled(fresh, company):
    ec2 = fresh("ec2")
    (there,) = ec2.describe_regions(RegionNames=["eu-south-1"], AllRegions=True)["Regions"]
    assert there["OptInStatus"] == "not-opted-in"
    assert "eu-south-1" not in {one["RegionName"] for one in ec2.describe_regions()["Regions"]}
    for service, call, code_of_service in (
        ("ec2", "describe_vpcs", "AuthFailure"),
        ("sts", "get_caller_identity", "InvalidClientTokenId"),
        ("cloudformation", "describe_stacks", "InvalidClientTokenId"),
        ("dynamodb", "list_tables", "UnrecognizedClientException"),
    ):
        assert code(getattr(fresh(service, "eu-south-1"), call)) == code_of_service
    assert company("sts", "eu-south-1").get_caller_identity()
    assert company("ec2").describe_regions(RegionNames=["eu-south-1"])["Regions"][0]["OptInStatus"] == "opted-in"


def test_a_new_account_has_few_addresses(fresh):
    ec2 = fresh("ec2")
    for _ in range(5):
        ec2.allocate_address(Domain="vpc")
    assert code(ec2.allocate_address, Domain="vpc") == "AddressLimitExceeded"


def test_a_dry_run_makes_nothing_and_is_judged_as_the_call_would_be(company, fresh):
    assert code(company("ec2").create_vpc, CidrBlock="10.0.0.0/16", DryRun=True) == "UnauthorizedOperation"
    ec2 = fresh("ec2")
    before = len(ec2.describe_vpcs()["Vpcs"])
    assert code(ec2.create_vpc, CidrBlock="10.0.0.0/16", DryRun=True) == "DryRunOperation"
    assert code(ec2.create_placement_group, GroupName="g", Strategy="cluster", DryRun=True) == "DryRunOperation"
    assert len(ec2.describe_vpcs()["Vpcs"]) == before
    assert ec2.describe_placement_groups()["PlacementGroups"] == []
    assert ec2.create_placement_group(GroupName="g", Strategy="cluster", DryRun=False)


def test_settings_of_the_account_are_shown(company, fresh):
    for ec2, mode, endpoint, owner in (
        (company("ec2"), "block-bidirectional", "disabled", "declarative-policy"),
        (fresh("ec2"), "off", None, "account"),
    ):
        options = ec2.describe_vpc_block_public_access_options()["VpcBlockPublicAccessOptions"]
        assert (options["InternetGatewayBlockMode"], options["ManagedBy"]) == (mode, owner)
        assert ec2.describe_vpc_block_public_access_exclusions()["VpcBlockPublicAccessExclusions"] == []
        assert ec2.get_instance_metadata_defaults()["AccountLevel"].get("HttpEndpoint") == endpoint
        assert ec2.get_allowed_images_settings()["State"] == "disabled"


def test_the_tag_policy_of_the_organisation_is_shown_and_enforced(company, fresh):
    asked = {"PolicyType": "TAG_POLICY"}
    assert code(fresh("organizations").describe_effective_policy, **asked) == "AWSOrganizationsNotInUseException"
    shown = company("organizations").describe_effective_policy(**asked)["EffectivePolicy"]["PolicyContent"]
    (rule,) = json.loads(shown)["tags"].values()
    tags = [{"Key": rule["tag_key"], "Value": "Leisure"}]
    (image, *_) = company("ec2").describe_images()["Images"]
    launch = {"ImageId": image["ImageId"], "InstanceType": "m5.large", "MinCount": 1, "MaxCount": 1}
    specification = [{"ResourceType": "instance", "Tags": tags}]
    launch |= {"SubnetId": accounts.SUBNETS[0], "TagSpecifications": specification}
    assert code(company("ec2").run_instances, **launch) == "TagPolicyViolation"


def test_a_quota_without_a_value_of_the_account_has_aws_s_default(fresh):
    quotas, which = fresh("service-quotas"), {"ServiceCode": "elasticfilesystem", "QuotaCode": "L-848C634D"}
    assert code(quotas.get_service_quota, **which) == "NoSuchResourceException"
    assert quotas.get_aws_default_service_quota(**which)["Quota"]["Value"] == 1000
    assert quotas.get_service_quota(ServiceCode="ec2", QuotaCode="L-34B43A08")["Quota"]["Value"] == 5


def test_the_account_s_user_exists(fresh):
    who = fresh("sts").get_caller_identity()["Arn"]
    assert fresh("iam").get_user(UserName=who.rpartition("/")[2])["User"]["Arn"] == who


# Partition, a region, what its service principal of EC2 is, and the one that its IAM does not know.
FAR = {
    "china": ("aws-cn", "cn-north-1", "ec2.amazonaws.com.cn", "ec2.amazonaws.eu"),
    "gov": ("aws-us-gov", "us-gov-west-1", "ec2.amazonaws.com", "ec2.amazonaws.com.cn"),
    "eusc": ("aws-eusc", "eusc-de-east-1", "ec2.amazonaws.com", "ec2.amazonaws.eu"),
}


@pytest.mark.parametrize("profile", FAR)
def test_an_account_of_another_partition_knows_only_what_is_in_it(tmp_path, profile):
    partition, region, known, unknown = FAR[profile]
    with stacks(tmp_path / "state", profile) as cloud:
        client = functools.partial(cloud.client_in, region)
        assert client("sts").get_caller_identity()["Arn"].startswith(f"arn:{partition}:iam::")
        listed = {one["RegionName"] for one in client("ec2").describe_regions(AllRegions=True)["Regions"]}
        assert listed == set(accounts.REGIONS[profile])
        assert code(cloud.client_in("us-east-1", "sts").get_caller_identity) == "InvalidClientTokenId"
        iam, name = client("iam"), f"r-{profile}"
        role = iam.create_role(RoleName=name, AssumeRolePolicyDocument=ROLE["AssumeRolePolicyDocument"])["Role"]
        assert role["Arn"] == f"arn:{partition}:iam::123456789012:role/{name}"
        for arn, is_right in ((f"arn:{partition}:s3:::b/*", True), ("arn:aws:s3:::b/*", False)):
            statement = {"Effect": "Allow", "Action": "s3:GetObject", "Resource": arn}
            given = {"RoleName": name, "PolicyName": "p", "PolicyDocument": json.dumps({"Statement": statement})}
            if is_right:
                iam.put_role_policy(**given)
            else:
                with pytest.raises(ClientError, match='Partition "aws" is not valid for resource "arn:aws:s3'):
                    iam.put_role_policy(**given)
        assert code(iam.attach_role_policy, RoleName=name, PolicyArn="arn:aws:iam::aws:policy/ReadOnlyAccess")
        iam.attach_role_policy(RoleName=name, PolicyArn=f"arn:{partition}:iam::aws:policy/ReadOnlyAccess")
        for service in (known, unknown):
            trust = {"Effect": "Allow", "Principal": {"Service": service}, "Action": "sts:AssumeRole"}
            document = json.dumps({"Version": "2012-10-17", "Statement": [trust]})
            made = {"RoleName": f"{service}-{profile}", "AssumeRolePolicyDocument": document}
            if service == known:
                iam.create_role(**made)
            else:
                assert code(iam.create_role, **made) == "MalformedPolicyDocument"


@pytest.mark.parametrize("profile", FAR)
def test_a_stack_of_another_partition_has_its_arns_and_refuses_those_of_others(tmp_path, profile):
    partition, region, known, _ = FAR[profile]
    trust = {"Effect": "Allow", "Principal": {"Service": known}, "Action": "sts:AssumeRole"}
    with stacks(tmp_path / "state", profile) as cloud:
        cloudformation = cloud.client_in(region, "cloudformation")
        for name, arn in (("right", "arn:${AWS::Partition}:s3:::b"), ("wrong", "arn:aws:s3:::b")):
            policy = {"Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": {"Fn::Sub": arn}}]}
            role = {
                "AssumeRolePolicyDocument": {"Version": "2012-10-17", "Statement": [trust]},
                "Policies": [{"PolicyName": "p", "PolicyDocument": policy}],
            }
            body = {"Resources": {"Role": {"Type": "AWS::IAM::Role", "Properties": role}}}
            given = {"TemplateBody": json.dumps(body), "Capabilities": ["CAPABILITY_IAM"], "OnFailure": "DO_NOTHING"}
            stack = cloudformation.create_stack(StackName=f"{name}-{profile}", **given)["StackId"]
            assert stack.startswith(f"arn:{partition}:cloudformation:{region}:")
            found = cloud.engine.find(stack, region)
            until(lambda found=found: not found.status.endswith("IN_PROGRESS"), name)
            events = cloudformation.describe_stack_events(StackName=stack)["StackEvents"]
            said = " ".join(one.get("ResourceStatusReason", "") for one in events)
            assert (found.status == "CREATE_COMPLETE") == (name == "right"), said
            assert ('Partition "aws" is not valid' in said) == (name == "wrong")
