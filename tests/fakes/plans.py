"""Plans from the smallest document to the largest that options can make, and the default plan's document."""

import functools
import json
from dataclasses import replace
from typing import Any

from clusters import FACTS, GPU_FACTS, aws_spec, plan, spec

from phalanx.plan.existing_vpc import ExistingVpc, Subnet
from phalanx.plan.network_cards import Card
from phalanx.plan.plan import HeadFacts, make_plan
from phalanx.template import synthesize
from phalanx.template.emr.adopted import EmrCluster, Instance, Terms

KEY = "arn:aws:kms:us-east-1:123456789012:key/11111111-2222-3333-4444-555555555555"
NOISE = "".join(f"{n * 2654435761 % 2**32:08x}" for n in range(420))
P5 = tuple(Card(index, 2, "efa-only") for index in range(32))
WORST = make_plan(
    aws_spec(
        name="n" * 48,
        region="ap-southeast-1",
        nodes=1000,
        type="p6-b200.48xlarge",
        image="/" + "i" * 200,
        shared="/efs/" + "s" * 123,
        key_pair="k" * 255,
        boot=NOISE,
        placement="cluster",
        efa="yes",
        head={"type": "m5.large"},
        disk={"size_gib": 65536, "type": "io2", "iops": 256000},
        policies=[f"arn:aws:iam::123456789012:policy/{n}{'p' * 120}" for n in range(10)],
        permissions_boundary=f"arn:aws:iam::123456789012:policy/{'b' * 128}",
        down_after_s=7 * 86400,
        metrics="yes",
        tags={f"{n:02}{'k' * 30}": "v" * 60 for n in range(10)},
    ),
    replace(GPU_FACTS, zones=("ap-southeast-1a",), deployment=999, cards=P5, head=HeadFacts(2, 8, "x86_64")),
)
EMR = make_plan(
    spec(cloud="emr", type="m5.xlarge", ssh_from="203.0.113.0/24", emr={"logs": "s3://bucket/logs/"}),
    replace(FACTS, cloud="emr"),
)
FOUND = EmrCluster(
    cluster_id="j-1",
    name="theirs",
    instances=(Instance("i-1", "10.0.0.1", True), Instance("i-2", "10.0.0.2", False)),
    master_address="203.0.113.9",
    master_type="m5.xlarge",
    type="g5.xlarge",
    gpus=1,
    image="ami-1",
    network="10.0.0.0/24",
    group="sg-1",
    key_pair="mine",
    role="EMR_EC2_DefaultRole",
    role_arn="arn:aws:iam::1:role/EMR_EC2_DefaultRole",
    role_id="AROA1",
    task_instances=0,
    ends_itself=False,
)
ADOPTED = Terms(FOUND, "demo", 2, 600, "/efs", served_by_head=False)
CLOSED = Subnet("subnet-00000001", "vpc-1", "us-east-1b", "10.1.0.0/24", 251, "", table="rtb-1")
PLANS = {
    "local": plan(),
    "alone": plan(nodes=1, min=1),
    "gpu": make_plan(aws_spec(type="p5.48xlarge"), GPU_FACTS),
    "arm": plan(replace(FACTS, architecture="arm64"), image="amazon-linux-2023", key_pair="k", tls="required"),
    "private": make_plan(
        aws_spec(network={"access": "private"}, ssh_from="", image="dlami-base", metrics="yes", kms_key=KEY),
        replace(FACTS, cloud="aws"),
    ),
    "inside": make_plan(
        aws_spec(network={"access": "private", "head_subnet": CLOSED.subnet_id}, ssh_from="", image="dlami-base"),
        replace(FACTS, cloud="aws", vpc=ExistingVpc(CLOSED.vpc, True, True, CLOSED, CLOSED, ("10.1.0.0/16",))),
    ),
    "lustre": plan(
        storage="lustre",
        data={"a": "s3://my-bucket/a", "my-runs": "s3://my-bucket/runs rw"},
        lustre={"type": "persistent_2", "throughput": 500, "data": ["a", "my-runs"]},
    ),
    "worst": WORST,
}


def default_document() -> dict[str, Any]:
    """Return the document of a plan with only defaults."""
    return json.loads(_default_text())


@functools.cache
def _default_text() -> str:
    return synthesize(plan())


def resources(document: dict[str, Any], kind: str) -> dict[str, Any]:
    """Map the names of one type's resources to their properties."""
    return {name: r.get("Properties", {}) for name, r in document["Resources"].items() if r["Type"] == kind}
