"""Images of recipes in other partitions, made by a person with what `phalanx policy --images` prints."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest
from aws_here import AwsHere
from image_builds import play
from stack_fakes import stacks

from localcloud import accounts
from localcloud.iam.policy import statements_of
from phalanx.images import making, manifest, shelf
from phalanx.images.base import base
from phalanx.images.image_stack import Order
from phalanx.jobs.environments import recipe

pytestmark = pytest.mark.long

VERSION = "2026.1122.{}"
CONTENTS = json.dumps({"recipe": "torch", "python": "3.12.3", "packages": {}, "system": {}})


@pytest.mark.parametrize(("number", "profile"), [*enumerate(accounts.PARTITIONS, 810)])
def test_an_image_is_made_and_removed(tmp_path: Path, monkeypatch, phalanx, number: int, profile: str):
    monkeypatch.setenv("PHALANX_STATE_DIR", str(tmp_path / "person"))
    assert phalanx("policy", "--images") == 0
    statements, region = statements_of(json.loads(phalanx.out)), accounts.REGIONS[profile][0]
    trust = {"AWS": f"arn:{accounts.PARTITIONS[profile]}:iam::{accounts.ACCOUNT}:root"}
    trusts = {"Effect": "Allow", "Principal": trust, "Action": "sts:AssumeRole"}
    (tmp_path / "state").mkdir()
    with stacks(tmp_path / "state", profile) as cloud:
        play(cloud, tmp_path / "images", monkeypatch).prints = manifest.lines(CONTENTS)[0]
        iam = cloud.client_in(region, "iam")
        role = iam.create_role(RoleName="person", AssumeRolePolicyDocument=json.dumps({"Statement": trusts}))["Role"]
        document = json.dumps({"Version": "2012-10-17", "Statement": statements})
        iam.put_role_policy(RoleName="person", PolicyName="images", PolicyDocument=document)
        sts = cloud.client_in(region, "sts")
        keys = sts.assume_role(RoleArn=role["Arn"], RoleSessionName="me")["Credentials"]
        me = AwsHere(functools.cache(lambda service: cloud.client_of(service, keys, region)), region)
        me.poll_interval_s = 0.01
        wanted = Order(recipe("torch"), base("ubuntu-24.04-full"), VERSION.format(number), "m5.large")
        list(making.Making.begin(me, wanted).steps())
        made = shelf.find(me, "torch")
        assert making.read_manifest(me, made)["python"] == "3.12.3"
        list(making.remove(me, made))
        assert shelf.shelved(me) == []
