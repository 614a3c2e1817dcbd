"""`storage` and `file_system`: what serves the shared directory, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from clusters import FACTS, plan, spec
from error_codes import raises_code

from phalanx.aws.file_systems import mount_targets
from phalanx.errors import SpecError
from phalanx.plan.existing_vpc import INTERNET, NAT, ExistingVpc, Subnet
from phalanx.plan.mount_targets import MountTarget
from phalanx.plan.plan import Plan
from phalanx.plan.plan_text import explain
from phalanx.template import fleet, synthesize

OWN = "fs-0123456789abcdef0"
ZONE = "us-east-1b"
HEAD = Subnet("subnet-0123456789abcdef0", "vpc-0123456789abcdef0", ZONE, "10.1.0.0/28", 11, INTERNET)
VPC = ExistingVpc(
    HEAD.vpc,
    True,
    True,
    HEAD,
    replace(HEAD, subnet_id="subnet-0123456789abcdef1", cidr="10.1.1.0/28", way_out=NAT),
)
TARGET = MountTarget(ZONE, HEAD.vpc, ("sg-1", "sg-2"))


def inside(*targets: MountTarget, **fields: str) -> Plan:
    """Plan a cluster in the user's VPC with a file system that has these mount targets."""
    facts = replace(FACTS, zones=(ZONE,), vpc=VPC, mount_targets=targets)
    network = {"head_subnet": VPC.head.subnet_id, "worker_subnet": VPC.workers.subnet_id}
    return plan(facts, network=network, file_system=OWN, nodes=2, min=1, **fields)


def test_the_head_serves_a_directory_without_any_efs():
    made = plan(replace(FACTS, kept_file_system="fs-4567abcd"), storage="head")
    document = json.loads(synthesize(made))
    assert not {"FileSystem", "MountTarget", "StorageSecurityGroup"} & set(document["Resources"])
    assert "FileSystemId" not in document["Parameters"] and "elasticfilesystem" not in json.dumps(document)
    assert "SharedFileSystem" not in document["Outputs"]
    assert {fleet.config(role, made)["file_system"] for role in ("head", "worker")} == {"head"}
    assert any("ends with the head" in line for line in explain(made))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"file_system": OWN}, "file_system: is for EFS and FSx, and storage is head"),
        ({"throughput": "elastic"}, "throughput: is for EFS, and storage is head"),
        ({"keep": "yes"}, "keep: can't be yes: with `storage: head` the data are on the head's disk"),
    ],
)
def test_what_the_heads_disk_can_not_be(other, message):
    with pytest.raises(SpecError, match=message):
        spec(storage="head", **other)


def test_a_mount_target_of_the_users_lets_the_nodes_in_and_no_second_one_is_made():
    made = inside(TARGET)
    resources = json.loads(synthesize(made))["Resources"]
    assert not {"MountTarget", "StorageSecurityGroup"} & set(resources)
    rule = resources["NfsFromNodes"]["Properties"]
    assert (rule["GroupId"], rule["FromPort"]) == ("sg-1", 2049)
    assert rule["SourceSecurityGroupId"] == {"Ref": "NodeSecurityGroup"}
    assert "NfsFromNodes" in resources["WorkersGroup"]["DependsOn"]
    assert any(f"{OWN} and its mount target in {ZONE}" in line for line in explain(made))


def test_a_zone_without_a_mount_target_gets_one():
    made = inside(replace(TARGET, zone="us-east-1c"))
    assert "MountTarget" in json.loads(synthesize(made))["Resources"]
    assert any(f"{OWN} with a new mount target in {ZONE}" in line for line in explain(made))


@pytest.mark.parametrize(
    ("target", "fields", "message"),
    [
        (replace(TARGET, vpc="vpc-1"), {}, f"{OWN} has mount targets in vpc-1, and the nodes are in {HEAD.vpc}"),
        (replace(TARGET, groups=()), {}, "has no security group"),
        (TARGET, {"keep": "no"}, "keep: .* `down` can't delete it"),
    ],
)
def test_mount_targets_that_do_not_fit_are_refused(target, fields, message):
    with pytest.raises(SpecError, match=message):
        inside(target, **fields)


@pytest.mark.parametrize("chosen", ["yes", "no"])
def test_nodes_may_send_metrics_of_one_namespace_if_they_are_chosen(chosen):
    made = plan(metrics=chosen)
    statements = json.loads(synthesize(made))["Resources"]["NodePolicy"]["Properties"]["PolicyDocument"]["Statement"]
    allowed = [one["Condition"] for one in statements if one["Action"] == ["cloudwatch:PutMetricData"]]
    assert allowed == ([{"StringEquals": {"cloudwatch:namespace": "phalanx"}}] if chosen == "yes" else [])
    assert fleet.config("worker", made)["metrics"] == ("1" if chosen == "yes" else "")


def test_a_new_vpc_can_not_use_mount_targets_of_another():
    with raises_code("file-system-elsewhere", HEAD.vpc, "a new VPC") as refused:
        plan(replace(FACTS, mount_targets=(TARGET,)), file_system=OWN)
    assert f"Name subnets of {HEAD.vpc}" in str(refused.value)


class FakeEfs:
    """A file system with two mount targets: the user's, and one that the stack `demo` made."""

    def exists(self, service, operation, **arguments):
        return {"FileSystems": [{}]}

    def call(self, service, operation, **arguments):
        if operation == "describe_mount_targets":
            named = {"user": "us-east-1a", "demo": "us-east-1b"}
            return {
                "MountTargets": [
                    {"MountTargetId": name, "AvailabilityZoneName": zone, "VpcId": "vpc-1"}
                    for name, zone in named.items()
                ]
            }
        if operation == "describe_mount_target_security_groups":
            return {"SecurityGroups": [f"sg-{arguments['MountTargetId']}"]}
        asked = {one["Name"]: one["Values"] for one in arguments["Filters"]}
        (cluster,) = asked["tag:phalanx:cluster"]
        return {"SecurityGroups": [{"GroupId": one} for one in asked["group-id"] if one == f"sg-{cluster}"]}


@pytest.mark.parametrize(("cluster", "zones"), [("demo", ["us-east-1a"]), ("other", ["us-east-1a", "us-east-1b"])])
def test_the_mount_target_that_a_cluster_made_is_not_the_users(cluster, zones):
    """An update would otherwise remove it, or find the file system in another cluster's VPC."""
    assert [one.zone for one in mount_targets(FakeEfs(), OWN, cluster)] == zones
