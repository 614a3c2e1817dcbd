"""Images that are made as a cluster's file says, in the account of a company."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aws_here import AwsHere
from clusters import aws_spec
from error_codes import raises_code
from image_builds import PlayedShell, play
from needed_rights import used
from stack_fakes import Stacks, stacks
from test_image_rights import CONTENTS, person

from localcloud.accounts import BOUNDARY, COMPANY, SUBNETS
from localcloud.iam.policy import statements_of
from phalanx.errors import SpecError, StackFailed
from phalanx.images import making, manifest, place, shelf
from phalanx.images.base import base
from phalanx.images.image_stack import Order, request
from phalanx.jobs.environments import recipe

SPEC = aws_spec(
    network={"access": "private", "head_subnet": SUBNETS[0], "worker_subnet": SUBNETS[1]},
    permissions_boundary=BOUNDARY,
    tags={"CostCenter": "Research"},
    ssh_from="",
)
ORDER = Order(recipe("torch"), base("ubuntu-24.04-full"), "2026.1127.901", "m5.large")


@pytest.fixture(scope="module")
def company(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stacks]:
    with stacks(tmp_path_factory.mktemp("state"), COMPANY) as running:
        yield running


@pytest.fixture(autouse=True)
def played(company: Stacks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[PlayedShell]:
    monkeypatch.setenv("PHALANX_STATE_DIR", str(tmp_path / "person"))
    shell = play(company, tmp_path / "images", monkeypatch)
    shell.prints = manifest.lines(CONTENTS)[0]
    return shell


def document(where: place.Place) -> dict[str, Any]:
    return json.loads(request(replace(ORDER, place=where))[0])


FILE = (
    "name: demo\ncloud: aws\nregion: us-east-1\nnodes: 2\ntype: m5.large\n"
    f"permissions_boundary: {BOUNDARY}\nnetwork: {{access: private}}\n"
)
ROLE = "arn:aws:iam::123456789012:role/for-images"


def printed(phalanx: Any, file: Path, *options: str) -> Any:
    assert phalanx("policy", "--images", *options, "--file", str(file)) == 0
    return json.loads(phalanx.out)


@pytest.mark.parametrize("role", ["", ROLE])
def test_an_image_is_made_as_the_file_says_with_exactly_its_rights(company, phalanx, tmp_path, role):
    file, order = tmp_path / "phalanx.yaml", replace(ORDER, version=f"2026.1127.{910 + len(role)}")
    file.write_text(FILE + (f"cloudformation_role: {role}\n" if role else ""))
    me = person(company, f"builder{len(role)}", statements_of(printed(phalanx, file)), BOUNDARY)
    if role:
        made, iam = printed(phalanx, file, "--service-role"), company.client("iam")
        trust, document = (json.dumps(made[one]) for one in ("AssumeRolePolicyDocument", "PolicyDocument"))
        iam.create_role(RoleName="for-images", AssumeRolePolicyDocument=trust, PermissionsBoundary=BOUNDARY)
        iam.put_role_policy(RoleName="for-images", PolicyName="phalanx", PolicyDocument=document)
    where = place.find(me, order.instance_type, replace(SPEC, cloudformation_role=role or None))
    assert (where.subnet, where.boundary, where.tags) == (SUBNETS[1], BOUNDARY, {"CostCenter": "Research"})
    list(making.Making.begin(me, replace(order, place=where)).steps())
    made = shelf.find(me, "torch")
    (image,) = company.client("ec2").describe_images(ImageIds=[made.image_id])["Images"]
    assert {"Key": "CostCenter", "Value": "Research"} in image["Tags"]
    list(making.remove(me, made))
    assert shelf.shelved(me) == []
    assert not role or "iam:CreateRole" not in {
        one.action for one in used(company.context.state, f"builder{len(role)}")
    }


def test_without_the_file_the_organisation_refuses_the_build(company):
    api = AwsHere(company.client)
    plain = replace(ORDER, version="2026.1127.902", place=place.find(api, "m5.large"))
    with pytest.raises(StackFailed, match="service control policy"):
        list(making.Making.begin(api, plain).steps())


def test_everything_of_the_stack_follows_the_file(company):
    where = place.find(AwsHere(company.client), "m5.large", SPEC)
    found = document(where)["Resources"]
    kinds = {one["Type"] for one in found.values()}
    assert not [one for one in kinds if one.startswith("AWS::EC2::") and one != "AWS::EC2::SecurityGroup"]
    assert found["SecurityGroup"]["Properties"]["VpcId"] == where.vpc
    assert found["Infrastructure"]["Properties"]["SubnetId"] == SUBNETS[1]
    assert found["Infrastructure"]["Properties"]["ResourceTags"] == {"CostCenter": "Research"}
    roles = [one["Properties"] for one in found.values() if one["Type"] == "AWS::IAM::Role"]
    assert [one["PermissionsBoundary"] for one in roles] == [{"Ref": "Boundary"}] * 2
    (disk,) = found["Recipe"]["Properties"]["BlockDeviceMappings"]
    assert disk["Ebs"]["Encrypted"] is True


def test_a_deep_learning_ami_is_encrypted_and_keeps_its_size():
    chosen = replace(ORDER, base=base("dlami-base"), place=place.Place("us-east-1a", encrypted=True))
    (disk,) = json.loads(request(chosen)[0])["Resources"]["Recipe"]["Properties"]["BlockDeviceMappings"]
    assert disk["Ebs"] == {"DeleteOnTermination": True, "VolumeType": "gp3", "Encrypted": True}


def test_a_network_of_its_own_is_in_a_zone_that_offers_the_type(company):
    api = AwsHere(company.client)
    where = place.find(api, "p4d.24xlarge")
    offers = company.client("ec2").describe_instance_type_offerings(
        LocationType="availability-zone", Filters=[{"Name": "instance-type", "Values": ["p4d.24xlarge"]}]
    )["InstanceTypeOfferings"]
    assert where.zone in {one["Location"] for one in offers}
    assert document(where)["Resources"]["Subnet"]["Properties"]["AvailabilityZone"] == where.zone


@pytest.mark.parametrize(
    ("network", "code", "named"),
    [
        ({"access": "private"}, "unsuited-network", "web"),
        ({}, "blocked-public-access", "block-bidirectional"),
        ({"head_subnet": "subnet-00000000000000001"}, "no-subnet", "subnet-00000000000000001"),
    ],
)
def test_a_place_without_a_way_to_packages_is_refused_before_anything_is_made(company, network, code, named):
    spec = replace(SPEC, network=network or None, ssh_from="" if "access" in network else "203.0.113.7/32")
    with raises_code(code, named):
        place.find(AwsHere(company.client), "m5.large", spec)


def test_the_file_decides_the_cloud_and_the_region(phalanx, tmp_path):
    (tmp_path / "phalanx.yaml").write_text("name: demo\ncloud: local\nnodes: 2\n")
    for option in (("--cloud", "aws"), ("--region", "eu-west-1")):
        assert phalanx("image", "build", "torch", "--file", str(tmp_path / "phalanx.yaml"), *option) == 2
        assert option[0] in phalanx.err


def test_every_mistake_is_named_at_once(company):
    spec = replace(SPEC, network={"access": "private"}, permissions_boundary=BOUNDARY + "-of-nobody")
    with pytest.raises(SpecError) as refused:
        place.find(AwsHere(company.client), "m5.large", spec)
    assert "of-nobody" in str(refused.value)
    assert "web" in str(refused.value)
