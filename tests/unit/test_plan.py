"""A plan decides what the spec leaves open, shows the cost, and refuses what the cloud can't do."""

import json
from dataclasses import replace

import pytest
from clusters import FACTS, GPU_FACTS, aws_spec, plan, spec

from phalanx.data import table
from phalanx.errors import SpecError
from phalanx.plan.plan import image_parameter, known_sizes, make_plan, offline_facts
from phalanx.plan.plan_text import as_dict, explain, warnings


def test_the_zone_is_the_first_that_offers_the_type():
    assert plan().zone == "us-east-1a"


def test_no_zone_offers_the_type():
    with pytest.raises(SpecError, match=r"no zone of us-east-1 offers c5\.large"):
        plan(replace(FACTS, zones=()))


def test_a_parameter_that_is_not_there():
    with pytest.raises(SpecError, match="the SSM parameter /my/image does not exist in us-east-1"):
        plan(replace(FACTS, image_parameter_exists=False), image="/my/image")


@pytest.mark.parametrize(
    ("image", "gpus", "architecture", "parameter", "root_device"),
    [
        (None, 0, "x86_64", "/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/", "/dev/sda1"),
        (None, 0, "arm64", "/aws/service/canonical/ubuntu/server/24.04/stable/current/arm64/", "/dev/sda1"),
        (None, 8, "x86_64", "/aws/service/deeplearning/ami/x86_64/oss-nvidia-driver-gpu-pytorch-", "/dev/sda1"),
        ("dlami-base", 0, "arm64", "/aws/service/deeplearning/ami/arm64/base-oss-nvidia-driver-gpu-", "/dev/sda1"),
        ("amazon-linux-2023", 0, "arm64", "/aws/service/ami-amazon-linux-latest/al2023-ami-", "/dev/xvda"),
        ("/my/al2023/image", 0, "x86_64", "/my/al2023/image", "/dev/xvda"),
        ("/my/image", 0, "x86_64", "/my/image", "/dev/sda1"),
    ],
)
def test_image(image, gpus, architecture, parameter, root_device):
    made = plan(replace(FACTS, gpus=gpus, architecture=architecture), image=image)
    assert made.image_parameter.startswith(parameter)
    assert made.image_parameter == image_parameter(made.spec, gpus, architecture)
    assert "{" not in made.image_parameter
    assert made.root_device == root_device


@pytest.mark.parametrize(("slots", "gpus", "expected"), [(None, 0, 2), (None, 8, 8), (3, 8, 3)])
def test_slots(slots, gpus, expected):
    assert plan(replace(FACTS, gpus=gpus), slots=slots).slots == expected


def test_the_local_cloud_costs_nothing():
    made = plan()
    assert made.cost_usd_per_hour == 0
    assert "cost              nothing" in explain(made)


def test_cost_on_aws():
    made = make_plan(aws_spec(nodes=4, type="p3.16xlarge"), GPU_FACTS)
    assert made.cost_usd_per_hour == pytest.approx(4 * 24.48 + 0.045 + 2 * 0.005)
    assert any("about $97.97 an hour" in line for line in explain(made))


def test_unknown_type_is_allowed_and_its_price_unknown():
    made = make_plan(aws_spec(type="c99.large"), FACTS)
    assert made.cost_usd_per_hour is None
    assert any("the price of c99.large is not known" in warning for warning in warnings(made))


@pytest.mark.parametrize(
    ("fields", "facts", "said"),
    [
        ({"ssh_from": "anywhere"}, FACTS, "open to the whole internet"),
        ({"type": "t3.large"}, FACTS, "burstable"),
        ({"slots": 5}, FACTS, "5 slots on 2 vCPUs"),
        ({"type": "p5.48xlarge"}, GPU_FACTS, "32 network cards, and only the first is used"),
        (
            {"type": "p5.48xlarge"},
            GPU_FACTS,
            "768 vCPUs count against your quota “Running On-Demand P instances” (L-417A185B)",
        ),
        ({"type": "c5.large"}, FACTS, "8 vCPUs count against your quota “Running On-Demand Standard instances”"),
        ({"region": "eu-west-1"}, FACTS, "prices of us-east-1 (2026-11); eu-west-1 differs"),
        ({}, replace(FACTS, zones=("us-east-1c",)), "only us-east-1c offers c5.large"),
    ],
)
def test_warnings(fields, facts, said):
    assert any(said in warning for warning in warnings(make_plan(aws_spec(**fields), facts)))


def test_an_ordinary_local_plan_warns_of_nothing():
    assert warnings(plan()) == []


def test_lines_show_the_plan():
    text = "\n".join(explain(plan(nodes=4, min=2)))
    assert "4 × c5.large: the head and 3 workers, at least 2" in text
    assert "2 vCPUs, 4 GiB, x86_64, 2 slots" in text
    assert "1 × c5.large: the head," in "\n".join(explain(plan(nodes=1, min=1)))


def test_as_dict_is_json():
    made = json.loads(json.dumps(as_dict(plan(GPU_FACTS))))
    assert made["spec"]["name"] == "demo"
    assert (made["zone"], made["slots_per_node"], made["gpus_per_node"]) == ("us-east-1a", 8, 8)


def test_only_the_public_key_is_sent_beside_the_template():
    assert plan().parameters() == {"SshPublicKey": "ssh-ed25519 AAAAC3 me@here"}
    assert plan(replace(FACTS, ssh_public_key="")).parameters() == {}


def test_offline_facts_come_from_the_table():
    facts = offline_facts(spec(type="p4d.24xlarge"))
    assert facts
    assert (facts.vcpus, facts.gpus, facts.network_cards, facts.zones) == (96, 8, 4, ("us-east-1a",))
    assert offline_facts(spec(type="c99.large")) is None


def test_tables_say_where_they_are_from():
    for name in ("instance_types", "images", "regions", "quotas"):
        assert "2026" in table(name)["_source"]


def test_every_listed_type_is_whole():
    keys = {"vcpus", "gpus", "memory_gib", "architecture", "network_cards", "usd_per_hour"}
    types = table("instance_types")["types"]
    assert len(types) >= 25
    assert all(set(known_sizes(name) or {}) == keys for name in types)
