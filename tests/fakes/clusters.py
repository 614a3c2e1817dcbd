"""Specs and plans that several tests share."""

from dataclasses import replace
from typing import Any

from phalanx.plan.plan import Facts, Plan, make_plan
from phalanx.spec.spec import ClusterSpec

FACTS = Facts(
    "local",
    "us-east-1",
    ("us-east-1b", "us-east-1a"),
    vcpus=2,
    memory_gib=4,
    ssh_public_key="ssh-ed25519 AAAAC3 me@here",
)
GPU_FACTS = replace(FACTS, cloud="aws", vcpus=192, gpus=8, memory_gib=2048, network_cards=32)


def spec(**fields: Any) -> ClusterSpec:
    return ClusterSpec(**({"name": "demo", "nodes": 4, "min": 2} | fields))


def aws_spec(**fields: Any) -> ClusterSpec:
    return spec(**({"cloud": "aws", "ssh_from": "203.0.113.0/24"} | fields))


def plan(facts: Facts = FACTS, **fields: Any) -> Plan:
    return make_plan(spec(**fields), facts)
