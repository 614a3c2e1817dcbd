"""Plans from the tables: they print all that needs no cloud, and name what nobody has checked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from moto.ec2.models.instance_types import INSTANCE_TYPES

from phalanx import connection
from phalanx.aws import lookups
from phalanx.data import table
from phalanx.plan.plan import known_sizes

HEAD, WORKERS = "subnet-0123456789abcdef0", "subnet-0123456789abcdef1"
BASE = "name: demo\nnodes: 4\nregion: eu-west-1\n"
AWS = BASE + "cloud: aws\nssh_from: 203.0.113.7/32\n"
SUBNETS = f"network: {{head_subnet: {HEAD}, worker_subnet: {WORKERS}}}\n"
P5 = "type: p5.48xlarge\nefa: yes\nhead: {type: m5.xlarge}\n"

# What the file names, and a word of the command that checks it.
NAMED = {
    "subnets": (AWS + SUBNETS, f"describe-subnets --subnet-ids {HEAD} {WORKERS}"),
    "one subnet": (AWS + f"network: {{head_subnet: {HEAD}}}\n", f"describe-subnets --subnet-ids {HEAD}"),
    "private": (
        AWS.replace("ssh_from: 203.0.113.7/32\n", f"network: {{access: private, head_subnet: {HEAD}}}\n"),
        HEAD,
    ),
    "efa": (AWS + P5, "describe-instance-types --instance-types p5.48xlarge"),
    "efa in subnets": (AWS + SUBNETS + P5, "describe-instance-types --instance-types p5.48xlarge"),
    "one card": (AWS + "type: g5.12xlarge\nefa: yes\n", "describe-instance-types --instance-types g5.12xlarge"),
    "reservation": (AWS + "capacity: cr-0123456789abcdef0\n", "cr-0123456789abcdef0"),
    "ssh from here": (AWS.replace("203.0.113.7/32", "[auto, 203.0.113.7/32]"), "checkip.amazonaws.com"),
    "lustre": (AWS + "storage: lustre\nfile_system: fs-0123456789abcdef0\n", "fsx describe-file-systems"),
    "efs": (AWS + "file_system: fs-0123456789abcdef0\n", "efs describe-mount-targets"),
    "recipe": (AWS + "image: recipe:torch\n", "phalanx image ls"),
    "ami": (AWS + "image: ami-0123456789abcdef0\n", "describe-images --image-ids ami-0123456789abcdef0"),
    "key pair": (AWS + "key_pair: mine\n", "describe-key-pairs --key-names mine"),
    "placement": (AWS + "placement: mine\n", "describe-placement-groups --group-names mine"),
    "policies": (AWS + "policies: ['arn:aws:iam::123456789012:policy/p']\n", "get-policy --policy-arn arn:aws:iam::1"),
    "data": (AWS + "data: {train: 's3://bucket/prefix'}\n", "aws s3 ls s3://bucket/prefix"),
    "emr": (AWS.replace("cloud: aws", "cloud: emr") + "emr: {logs: 's3://bucket/logs'}\n", "aws s3 ls s3://bucket"),
    "local subnets": (BASE + SUBNETS, HEAD),
    "local efa": (BASE + P5, "p5.48xlarge"),
}


@pytest.mark.parametrize(("text", "check"), NAMED.values(), ids=NAMED)
def test_what_only_the_cloud_knows_is_named_and_the_rest_printed(phalanx, monkeypatch, text, check):
    monkeypatch.setattr(connection, "connect", lambda name, region: pytest.fail("the cloud was asked"))
    Path("phalanx.yaml").write_text(text)
    assert phalanx("plan", "--offline", "--json") == 0, phalanx.err
    not_checked = json.loads(phalanx.out)["not_checked"]
    assert any(check in one for one in not_checked), not_checked
    assert phalanx("plan", "--offline") == 0
    assert [line for line in phalanx.out.splitlines() if line.startswith("not checked: ")] == [
        f"not checked: {one}" for one in not_checked
    ]
    assert phalanx("template", "--offline") == 0
    assert all(f"not checked: {one}" in phalanx.err for one in not_checked)
    assert json.loads(phalanx.out)["Resources"]
    assert phalanx("policy", "--offline") == 0
    assert json.loads(phalanx.out)["Statement"]
    assert all(f"not checked: {one}" in phalanx.err for one in not_checked)
    assert phalanx("plan", "--offline", "--egress", "--json") == 0
    assert all(row["host"] for row in json.loads(phalanx.out))


def test_the_console_asks_for_what_nobody_looked_up(phalanx):
    Path("phalanx.yaml").write_text(AWS.replace("203.0.113.7/32", "auto") + SUBNETS + "image: recipe:torch\n")
    assert phalanx("template", "--offline") == 0
    given = json.loads(phalanx.out)["Parameters"]
    asked = ("Vpc", "Networks", "SshLocation", "Image")
    assert not any("Default" in given[name] for name in asked)
    assert (given["PublicSubnet"]["Default"], given["PrivateSubnet"]["Default"]) == (HEAD, WORKERS)
    assert given["Image"]["Type"] == "AWS::EC2::Image::Id"


def test_nothing_is_unchecked_where_the_cloud_was_asked(phalanx, cloud):
    Path("phalanx.yaml").write_text(AWS)
    assert phalanx("plan", "--json") == 0
    assert json.loads(phalanx.out)["not_checked"] == []


def test_the_table_says_of_each_type_what_ec2_describes():
    for name in table("instance_types")["types"]:
        assert known_sizes(name) == lookups.sizes(INSTANCE_TYPES[name])
