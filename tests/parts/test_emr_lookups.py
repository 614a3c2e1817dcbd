"""What is looked up in EMR for a plan and after a deletion: all that it would refuse, and what is left there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from aws_here import AwsHere
from emr_fakes import LABEL, Emr, trust
from error_codes import each, missing, raises_code
from fleet_fakes import forget_resources, name
from stack_fakes import stacks

from localcloud.api import partitions
from phalanx.aws import lookups
from phalanx.aws.inventory import orphans, remains
from phalanx.emr import checks
from phalanx.emr.instance_groups import InstanceGroups
from phalanx.errors import SpecError
from phalanx.spec.spec import ClusterSpec

BUCKET = "emr-lookups"
GONE = "sg-0123456789abcdef0"


@pytest.fixture(scope="module")
def emr(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emr]:
    with stacks(tmp_path_factory.mktemp("state")) as cloud:
        cloud.client("s3").create_bucket(Bucket=BUCKET)
        yield Emr(cloud)
        forget_resources(cloud.context.account)


@pytest.fixture
def aws(emr: Emr) -> AwsHere:
    made = AwsHere(emr.cloud.client)
    made.name, made.machines = "emr", InstanceGroups(made)
    return made


def spec(emr: dict[str, Any], **fields: Any) -> ClusterSpec:
    given = {"name": "demo", "cloud": "emr", "nodes": 2, "type": "m5.xlarge", "ssh_from": "203.0.113.0/24"}
    return ClusterSpec(**{**given, **fields}, emr={"logs": f"s3://{BUCKET}/logs", "release": LABEL, **emr})


def refusal(aws: AwsHere, emr: dict[str, Any], **fields: Any) -> str:
    with pytest.raises(SpecError) as refused:
        checks.require(aws, spec(emr, **fields))
    return str(refused.value)


def test_what_emr_has_is_accepted(aws):
    assert checks.require(aws, spec({})) == ("", "")
    arn, role_id = checks.require(aws, spec({"node_role": "EMR_EC2_DefaultRole"}))
    assert arn.endswith(":role/EMR_EC2_DefaultRole") and role_id.startswith("AROA")


@pytest.mark.parametrize(
    ("emr_keys", "fields", "said"),
    [
        ({"release": "emr-7.99.0"}, {}, "emr: release: EMR has no emr-7.99.0 in us-east-1\nThe newest are emr-"),
        ({"applications": ["Hue", "Gadget"]}, {}, f"emr: applications: {LABEL} has no Gadget"),
        ({}, {"type": "t2.nano"}, f"type: EMR has no t2.nano for {LABEL}"),
        ({"logs": "s3://there-is-no-such-bucket"}, {}, "emr: "),
        ({"service_role": "Nobody"}, {}, "emr: service_role: there is no role 'Nobody'"),
        ({"node_role": "Nobody"}, {}, "emr: node_role: there is no role 'Nobody'"),
        (
            {"service_role": "EMR_EC2_DefaultRole"},
            {},
            "'EMR_EC2_DefaultRole' does not trust elasticmapreduce.",
        ),
        ({"node_role": "EMR_DefaultRole"}, {}, "'EMR_DefaultRole' does not trust ec2.amazonaws.com"),
    ],
)
def test_what_emr_would_refuse_is_named_before_anything_is_created(aws, emr_keys, fields, said):
    assert said in refusal(aws, emr_keys, **fields)


def test_all_that_is_missing_is_named_at_once_each_with_what_to_do(aws):
    wrong = {
        "logs": "s3://there-is-no-such-bucket/logs",
        "applications": ["Gadget"],
        "service_role": "Nobody",
        "node_role": "EMR_DefaultRole",
        "master_group": GONE,
        "core_group": GONE,
    }
    named = {"type": "t2.nano", "key_pair": "none-such", "image": "ami-0123456789abcdef0"}
    nowhere = {"head_subnet": "subnet-0123456789abcdef0"}
    with pytest.raises(SpecError) as refused:
        lookups.facts(aws, spec(wrong, **named, network=nowhere), "ssh-ed25519 AAAA")
    wanted = [
        ("no-key-pair", "key_pair: ", "none-such"),
        ("no-bucket", "emr: ", "there-is-no-such-bucket (logs)"),
        ("no-application", "emr: applications: ", f"{LABEL} has no Gadget"),
        ("type-not-offered", "type: ", f"t2.nano for {LABEL}"),
        ("no-role", "emr: service_role: ", "'Nobody'"),
        ("untrusting-role", "emr: node_role: ", "'EMR_DefaultRole' does not trust ec2.amazonaws.com"),
        ("unsuited-network", "emr: ", GONE),
        ("no-subnet", "network: ", "subnet-0123456789abcdef0"),
        ("no-image", "image: ", "ami-0123456789abcdef0"),
    ]
    for (code, message), (expected, key, fact) in zip(each(refused.value), wanted, strict=True):
        assert code == expected and message.startswith(key) and fact in message
    assert "Remove it" in refused.value.mistakes[4].hint


def test_a_file_system_and_an_image_that_are_missing_are_named_with_the_rest(aws):
    named = {"file_system": "fs-0123456789abcdef0", "image": "/my/image", "key_pair": "none-such"}
    with pytest.raises(SpecError) as refused:
        lookups.facts(aws, spec({}, **named), "ssh-ed25519 AAAA")
    assert [code for code, _ in each(refused.value)] == ["no-key-pair", "no-file-system", "no-image"]
    assert [fact in str(refused.value) for fact in named.values()] == [True] * 3


def test_a_role_of_china_is_trusted_by_its_own_name(aws, emr, monkeypatch):
    made = name("china")
    iam = emr.cloud.client("iam")
    with monkeypatch.context() as there:
        there.setattr(partitions, "of_principals", lambda: "amazonaws.com.cn")
        iam.create_role(RoleName=made, AssumeRolePolicyDocument=trust("elasticmapreduce.amazonaws.com.cn"))
    assert checks.require(aws, spec({"service_role": made})) == ("", "")


def test_all_that_is_wrong_with_a_subnet_and_groups_is_named_at_once(aws, emr):
    ec2 = emr.cloud.client("ec2")
    elsewhere = ec2.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    other = ec2.create_security_group(GroupName=name("other"), Description="x", VpcId=elsewhere)["GroupId"]
    own = {"network": {"head_subnet": emr.subnet}}
    with raises_code("unsuited-network") as refused:
        checks.require(aws, spec({"master_group": GONE, "core_group": other}, **own))
    wanted = (
        (f"emr: there is no security group {GONE}",),
        (f"emr: {other} is in {elsewhere}", f"{emr.subnet} is in {emr.vpc}"),
        (f"network: {emr.subnet}", "MapPublicIpOnLaunch"),
        (f"emr: {emr.subnet} has no tag", "for-use-with-amazon-emr-managed-policies = true"),
    )
    for line, facts in zip(str(refused.value).splitlines(), wanted, strict=False):
        assert missing(facts, line) == []
    # A service role of the user's may have other conditions than AWS's policy.
    mine = refusal(aws, {"service_role": "EMR_DefaultRole"}, **own)
    assert "has no tag" not in mine and "gives no public addresses" in mine


@pytest.mark.parametrize("tagged", [True, False])
def test_an_emr_cluster_without_its_stack_is_found_by_its_tag_and_name(aws, emr, tagged):
    cluster = name("left")
    tags = [{"Key": "phalanx:cluster", "Value": cluster}] if tagged else []
    made = emr.ready(1, Name=cluster, Tags=tags)
    found = [one for one in orphans.find(aws) if one.cluster == cluster]
    if tagged:
        assert remains.find(aws, cluster, [])[0] == f"EMR cluster {made} (WAITING)"
        assert found[0].lines[0] == f"EMR cluster {made} (WAITING)"
    else:
        # Somebody else's, which only has the same name.
        assert found == [] and remains.find(aws, cluster, []) == []
    emr.api.terminate_job_flows(JobFlowIds=[made])
    emr.ended(made)
    assert remains.find(aws, cluster, []) == []
    assert cluster not in [one.cluster for one in orphans.find(aws)]
