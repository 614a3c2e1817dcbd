"""What `phalanx doctor` finds in an account, with the settings that the local cloud has no way to change."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from aws_here import AwsHere
from botocore.exceptions import ClientError
from clusters import aws_spec
from error_codes import raises_code
from fleet_fakes import REGION
from stack_fakes import Stacks, stacks

from localcloud.daemon import faults
from phalanx.aws import doctor, lookups
from phalanx.aws.doctor import NOTE, OK, STOPS, UNKNOWN, Finding
from phalanx.aws.refusals import translate
from phalanx.plan.plan import make_plan

KEY = f"arn:aws:kms:{REGION}:123456789012:key/11111111-2222-3333-4444-555555555555"
ROLE = "arn:aws:iam::123456789012:role/aws-service-role/autoscaling.amazonaws.com/AWSServiceRoleForAutoScaling"
VPC = f"arn:aws:ec2:{REGION}:123456789012:vpc/vpc-0123456789abcdef0"


@pytest.fixture(scope="module")
def local(tmp_path_factory) -> Iterator[Stacks]:
    with stacks(tmp_path_factory.mktemp("state")) as made:
        yield made


class Planted(AwsHere):
    """AWS, where these operations answer otherwise: with a mapping, or with an error's code."""

    def __init__(self, local: Stacks, **answers: Any) -> None:
        super().__init__(local.client)
        self.answers = answers

    def call(self, service: str, operation: str, **arguments: Any) -> dict[str, Any]:
        answer = self.answers.get(operation)
        if isinstance(answer, str):
            error = {"Error": {"Code": answer, "Message": "planted"}}
            raise translate(ClientError(error, operation), f"{service}:{operation}", "AWS") from ClientError(
                error, operation
            )
        return answer if answer is not None else super().call(service, operation, **arguments)


def found(local: Stacks, check: str, **answers: Any) -> list[Finding]:
    api = Planted(local, **answers)
    return [one for one in doctor.examine(api, api)[1] if one.check == check]


def verdicts(local: Stacks, check: str, **answers: Any) -> set[str]:
    return {one.verdict for one in found(local, check, **answers)}


def options(mode: str) -> dict[str, Any]:
    return {"VpcBlockPublicAccessOptions": {"InternetGatewayBlockMode": mode}}


def test_an_account_of_one_s_own_stops_nothing(local):
    api = Planted(local)
    account, findings = doctor.examine(api, api)
    assert account and account.number == "123456789012"
    assert {one.verdict for one in findings} <= {OK, NOTE}
    assert {one.check for one in findings} == {*doctor.CHECKS}


def test_a_region_that_is_not_enabled_is_the_only_finding(local):
    regions = {"Regions": [{"RegionName": REGION, "OptInStatus": "not-opted-in"}]}
    account, findings = doctor.examine(Planted(local), Planted(local, describe_regions=regions))
    assert account is None
    assert [(one.check, one.verdict) for one in findings] == [("region", STOPS)]
    assert REGION in findings[0].remedy


@pytest.mark.parametrize("mode", ["block-ingress", "block-bidirectional"])
def test_blocked_public_access_stops_clusters_and_plans(local, mode):
    answers = {"describe_vpc_block_public_access_options": options(mode)}
    assert verdicts(local, "vpc-block-public-access", **answers) == {STOPS}
    with raises_code("blocked-public-access", mode):
        make_plan(aws_spec(type="c5.large"), lookups.facts(Planted(local, **answers), aws_spec(type="c5.large"), ""))


def test_whoever_may_not_ask_about_public_access_plans_without(local):
    refused = {"describe_vpc_block_public_access_options": "UnauthorizedOperation"}
    assert verdicts(local, "vpc-block-public-access", **refused) == {UNKNOWN}
    make_plan(aws_spec(type="c5.large"), lookups.facts(Planted(local, **refused), aws_spec(type="c5.large"), ""))


@pytest.mark.parametrize(
    ("grants", "policy", "verdict"),
    [
        ([], "{}", STOPS),
        ([{"GranteePrincipal": ROLE}], "{}", OK),
        ([], json.dumps({"Statement": [{"Effect": "Allow", "Principal": {"AWS": ROLE}}]}), OK),
        ([], json.dumps({"Statement": [{"Effect": "Deny", "Principal": {"AWS": ROLE}}]}), STOPS),
        ([], json.dumps({"Statement": [{"Effect": "Allow", "Principal": "*"}]}), UNKNOWN),
        (None, "", UNKNOWN),
    ],
)
def test_a_key_for_disks_needs_a_grant_for_auto_scaling(local, grants, policy, verdict):
    (one,) = found(
        local,
        "disk-key",
        get_ebs_default_kms_key_id={"KmsKeyId": KEY},
        get_ebs_encryption_by_default={"EbsEncryptionByDefault": True},
        list_grants="AccessDeniedException" if grants is None else {"Grants": grants},
        get_key_policy={"Policy": policy},
    )
    assert one.verdict == verdict
    assert KEY in one.text
    assert (ROLE in one.remedy) == (verdict != OK)


def test_images_that_the_account_leaves_out_are_named(local):
    settings = {"State": "enabled"}
    assert verdicts(local, "allowed-images", get_allowed_images_settings=settings) == {NOTE}
    hidden = {"get_allowed_images_settings": settings, "describe_images": {"Images": []}}
    (one,) = found(local, "allowed-images", **hidden)
    assert one.verdict == STOPS
    assert "ubuntu-24.04" in one.text
    assert verdicts(local, "allowed-images", get_allowed_images_settings={"State": "audit-mode"}) == {OK}


def test_a_quota_that_leaves_nothing_is_named_with_its_command(local):
    try:
        faults.apply(local.context, {"vcpu_limit": 0, "address_limit": 0, "vpc_limit": 0})
        rows = found(local, "quotas")
    finally:
        faults.apply(local.context, {"vcpu_limit": None, "address_limit": None, "vpc_limit": None})
    stops = [one for one in rows if one.verdict == STOPS]
    assert [("Elastic IPs" in one.text, "VPCs" in one.text) for one in stops] == [(True, False), (False, True)]
    assert sum(one.verdict == NOTE for one in rows) == 7, "each class of types, on demand or spot"
    assert all("request-service-quota-increase" in one.remedy for one in rows if one.verdict != OK)


def test_a_user_with_a_boundary_learns_that_roles_may_need_it(local):
    boundary = {"PermissionsBoundary": {"PermissionsBoundaryArn": "arn:aws:iam::123456789012:policy/all"}}
    (one,) = found(local, "permissions-boundary", get_user={"User": boundary})
    assert one.verdict == NOTE
    assert "permissions_boundary: arn:aws:iam::123456789012:policy/all" in one.remedy
    assumed = {"Account": "123456789012", "Arn": "arn:aws:sts::123456789012:assumed-role/Admin/ada"}
    (one,) = found(local, "permissions-boundary", get_caller_identity=assumed, get_role={"Role": boundary})
    assert one.verdict == NOTE


def test_every_service_may_refuse_and_nothing_stops_the_others(local):
    refused = dict.fromkeys(("get_user", "describe_subnets", "get_instance_metadata_defaults"), "AccessDenied")
    api = Planted(local, **refused)
    findings = doctor.examine(api, api)[1]
    unknown = {one.check for one in findings if one.verdict == UNKNOWN}
    assert unknown == {"permissions-boundary", "shared-subnets", "metadata"}
    assert {one.check for one in findings} == {*doctor.CHECKS}


@pytest.mark.parametrize(("partition", "ending"), [("aws", "com`"), ("aws-cn", "com.cn`")])
def test_the_role_of_emr_has_the_services_name_in_the_partition(local: Stacks, partition: str, ending: str):
    caller = {"Account": "123456789012", "Arn": f"arn:{partition}:iam::123456789012:user/me"}
    roles = found(local, "service-roles", get_caller_identity=caller)
    assert [one.remedy for one in roles if one.remedy.endswith(f"elasticmapreduce.amazonaws.{ending}")]
