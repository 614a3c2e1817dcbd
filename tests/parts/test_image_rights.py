"""The rights for images: a person with exactly what `phalanx policy --images` prints makes and removes them."""

from __future__ import annotations

import functools
import importlib.util
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aws_here import AwsHere
from image_builds import play
from needed_rights import not_needed, used
from stack_fakes import Stacks, stacks

from localcloud.api import moto_setup
from localcloud.iam.policy import statements_of
from localcloud.images.imagebuilder import registered
from localcloud.images.store import Image
from phalanx.errors import StackFailed
from phalanx.images import making, manifest, place, shelf
from phalanx.images.base import base
from phalanx.images.image_stack import Order
from phalanx.jobs.environments import recipe

TRUST = {"Effect": "Allow", "Principal": {"AWS": "arn:aws:iam::123456789012:root"}, "Action": "sts:AssumeRole"}
# Not of another module: moto keeps the log group of each build for as long as the process lives.
VERSION = "2026.1122.977"
CONTENTS = json.dumps({"recipe": "torch", "python": "3.12.3", "packages": {}, "system": {}})
# What this life does not need, and why it is a right nevertheless.
NOT_HERE = {
    "role/phalanx/": "of clusters alone: the name of the role that removes a forgotten one",
    "ec2:DescribeNetworkInterfaces": "of a deletion that fails: what keeps the VPC",
    "cloudformation:TagResource": "AWS judges a stack's tags beside CreateStack",
}


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stacks]:
    with stacks(tmp_path_factory.mktemp("state")) as running:
        yield running


@pytest.fixture(autouse=True)
def played(cloud, tmp_path, monkeypatch):
    monkeypatch.setenv("PHALANX_STATE_DIR", str(tmp_path / "person"))
    shell = play(cloud, tmp_path / "images", monkeypatch)
    shell.prints = manifest.lines(CONTENTS)[0]
    return shell


def person(cloud: Stacks, name: str, statements: list[Any], boundary: str = "") -> AwsHere:
    """Return AWS as a person sees it whose role has these rights."""
    iam = cloud.client("iam")
    trust = json.dumps({"Version": "2012-10-17", "Statement": [TRUST]})
    bound = {"PermissionsBoundary": boundary} if boundary else {}
    role = iam.create_role(RoleName=name, AssumeRolePolicyDocument=trust, **bound)["Role"]["Arn"]
    document = json.dumps({"Version": "2012-10-17", "Statement": statements})
    iam.put_role_policy(RoleName=name, PolicyName="images", PolicyDocument=document)
    keys = cloud.client("sts").assume_role(RoleArn=role, RoleSessionName="me")["Credentials"]
    return AwsHere(functools.cache(lambda service: cloud.client_of(service, keys)))


@pytest.fixture
def printed(phalanx) -> list[Any]:
    assert phalanx("policy", "--images") == 0
    return statements_of(json.loads(phalanx.out))


def order(version: str) -> Order:
    return Order(recipe("torch"), base("ubuntu-24.04-full"), version, "m5.large")


def an_image_without_its_stack(cloud: Stacks) -> None:
    """Register an image whose stack somebody has deleted without it."""
    tags = {"phalanx:recipe": "mpich", "phalanx:version": "2026.1.1", "localcloud:machine": "x86_64"}
    made = Image("mpich", "", "", 0, 0, 0, registered.new_id(), "mpich", {**tags, "CreatedBy": "EC2 Image Builder"})
    backend = registered.ec2_backends[cloud.context.account]["us-east-1"]
    backend.amis[made.ami] = moto_setup.ami_of(backend, made)


def test_images_are_made_listed_and_removed_with_exactly_these_rights(cloud, printed):
    me = person(cloud, "person", printed)
    wanted = order(VERSION)
    list(making.Making.begin(me, replace(wanted, place=place.find(me, wanted.instance_type))).steps())
    made = shelf.find(me, "torch")
    assert making.read_manifest(me, made)["python"] == "3.12.3"
    list(making.remove(me, made))
    an_image_without_its_stack(cloud)
    list(making.remove(me, shelf.find(me, "mpich")))
    assert shelf.shelved(me) == []
    assert not_needed(printed, used(cloud.context.state, "person"), NOT_HERE) == []


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("imagebuilder:CreateImage", "is not authorized to perform: imagebuilder:CreateImage on resource"),
        ("iam:PassRole", "is not authorized to perform: iam:PassRole on resource"),
        ("iam:CreateServiceLinkedRole", "is not authorized to perform: iam:CreateServiceLinkedRole"),
    ],
)
def test_without_one_of_them_the_build_fails_with_it(cloud, printed, missing, said):
    left = [{**one, "Action": [action for action in one["Action"] if action != missing]} for one in printed]
    left = [one for one in left if one["Action"]]
    me = person(cloud, missing.replace(":", "-"), left)
    wanted = order(f"2026.1122.{len(missing)}")
    with pytest.raises(StackFailed, match=re.escape(said)):
        list(making.Making.begin(me, wanted).steps())


def test_nothing_but_images_is_touched(cloud, printed):
    me = person(cloud, "stranger", printed)
    iam = cloud.client("iam")
    iam.create_role(RoleName="admin", AssumeRolePolicyDocument=json.dumps({"Statement": [TRUST]}))
    backend = registered.ec2_backends[cloud.context.account]["us-east-1"]
    mine = Image("mine", "", "", 0, 0, 0, registered.new_id(), "mine", {"localcloud:machine": "x86_64"})
    backend.amis[mine.ami] = moto_setup.ami_of(backend, mine)
    for service, operation, arguments in (
        ("ec2", "deregister_image", {"ImageId": mine.ami}),
        ("cloudformation", "delete_stack", {"StackName": "demo"}),
        ("iam", "get_role", {"RoleName": "admin"}),
    ):
        with pytest.raises(Exception, match="not authorized"):
            me.call(service, operation, **arguments)


def test_iam_knows_every_action_and_a_managed_policy_may_be_as_long(printed):
    assert len(re.sub(r"\s", "", json.dumps(printed))) <= 6144
    found = importlib.util.find_spec("cfnlint")
    assert found is not None and found.origin is not None
    known = json.loads((Path(found.origin).parent / "data" / "AdditionalSpecs" / "Policies.json").read_text())
    for one in (name for statement in printed for name in statement["Action"]):
        service, _, verb = one.partition(":")
        assert verb.lower() in known[service]["Actions"], one
