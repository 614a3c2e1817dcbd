"""A plan decides what the spec leaves open, shows the cost, and refuses what the cloud can't do."""

import json
from dataclasses import replace

import pytest
from clusters import FACTS, GPU_FACTS, aws_spec, plan, spec
from error_codes import raises_code

from phalanx.data import table
from phalanx.errors import SpecError
from phalanx.plan import grants, quotas
from phalanx.plan.machine_images import Image
from phalanx.plan.mount_targets import MountTarget
from phalanx.plan.plan import HeadFacts, make_plan, offline_facts
from phalanx.plan.plan_text import as_dict, describe, explain, warnings


def test_the_zone_is_the_first_that_offers_the_type():
    assert plan().zone == "us-east-1a"


def test_the_zone_is_the_preferred_one_that_offers_the_type():
    assert plan(zones=["us-east-1c", "us-east-1b", "us-east-1a"]).zone == "us-east-1b"


def test_no_preferred_zone_offers_the_type():
    with raises_code("type-not-offered", "us-east-1c", "c5.large") as refusal:
        plan(zones=["us-east-1c"])
    assert "us-east-1a, us-east-1b" in refusal.value.hint


def test_no_zone_offers_the_type():
    with raises_code("type-not-offered", "us-east-1", "c5.large"):
        plan(replace(FACTS, zones=()))


def test_all_that_can_t_be_provided_is_named_at_once():
    disk, targets = {"size_gib": 20}, (MountTarget("us-east-1a", "vpc-1", ("sg-1",)),)
    facts = replace(FACTS, image=Image("ami-1", "mine", "x86_64", "/dev/sda1", 35), mount_targets=targets)
    wanted = {"image": "ami-0123456789abcdef0", "disk": disk, "file_system": "fs-01234567", "budget": "$0.01"}
    with pytest.raises(SpecError) as refusal:
        make_plan(aws_spec(type="c5.large", **wanted), facts)
    keys = [line.partition(":")[0] for line in str(refusal.value).splitlines() if not line.startswith("  ")]
    assert keys == ["disk", "file_system", "budget"]


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
    assert "{" not in made.image_parameter
    assert made.root_device == root_device


@pytest.mark.parametrize(
    ("stand_ins", "gpus", "slots", "shown"),
    [
        (0, 0, 192, "p5.48xlarge has 8 GPUs on AWS and none in the local cloud: `phalanx local gpus 8`"),
        (8, 8, 8, "p5.48xlarge has 8 GPUs on AWS and 8 stand-ins in the local cloud"),
    ],
)
def test_a_type_with_gpus_has_none_in_the_local_cloud_or_stand_ins(stand_ins, gpus, slots, shown):
    made = plan(replace(GPU_FACTS, cloud="local", stand_ins=stand_ins), type="p5.48xlarge")
    assert (made.gpus, made.slots) == (gpus, slots)
    assert [text for text in warnings(made) if text.startswith(shown)]
    assert made.image_parameter == plan(GPU_FACTS, type="p5.48xlarge").image_parameter


@pytest.mark.parametrize(("slots", "gpus", "expected"), [(None, 0, 2), (None, 8, 8), (3, 8, 3)])
def test_slots(slots, gpus, expected):
    assert plan(replace(FACTS, gpus=gpus), slots=slots).slots == expected


def test_the_local_cloud_costs_nothing():
    made = plan()
    assert made.cost_usd_per_hour == 0
    assert "cost              nothing" in explain(made)


def test_cost_on_aws():
    made = make_plan(aws_spec(nodes=4, type="p4d.24xlarge"), GPU_FACTS)
    assert made.cost_usd_per_hour == pytest.approx(4 * 21.957642 + 0.045 + 2 * 0.005)
    assert any("about $87.89 an hour" in line for line in explain(made))


def test_cost_of_a_stopped_cluster():
    made = make_plan(aws_spec(nodes=4, type="p4d.24xlarge"), GPU_FACTS)
    assert as_dict(made)["stopped_usd_per_hour"] == pytest.approx(0.045 + 2 * 0.005)
    assert any(line.startswith("stopped") and "$0.055" in line for line in explain(made))
    unlimited = make_plan(aws_spec(nodes=4, type="c5.large"), FACTS)
    assert as_dict(unlimited)["stopped_usd_per_hour"] is None
    assert not [line for line in explain(unlimited) if line.startswith("stopped")]


@pytest.mark.parametrize(("wanted", "chosen"), [(None, "bursting"), ("elastic", "elastic")])
def test_both_throughput_modes_are_shown_with_limits_and_prices(wanted, chosen):
    first, second = (line for line in explain(make_plan(aws_spec(throughput=wanted), FACTS)) if "throughput" in line)
    assert first.split()[:2] == ["throughput", f"{chosen}:"]
    assert second.split()[:2] == ["or", "throughput"]
    both = first + second
    assert "at most 100 MiB/s for all nodes together while its credits last (about 6 h at first)" in both
    assert "at least 1 MiB/s; no charge" in both
    assert "$0.03 a GB read and $0.06 a GB written (us-east-1, 2026-11)" in both


def test_a_file_system_that_exists_keeps_its_throughput_mode():
    kept = replace(FACTS, kept_file_system="fs-0123456789abcdef0")
    assert not any("throughput" in line for line in explain(make_plan(aws_spec(), kept)))


def test_throughput_beside_a_file_system_that_exists_is_a_warning():
    made = make_plan(aws_spec(file_system="fs-0123456789abcdef0", throughput="elastic"), FACTS)
    assert "throughput is for a new file system: fs-0123456789abcdef0 keeps its mode" in warnings(made)


def test_choices_of_disk_rights_and_tags_are_lines_of_the_plan():
    shown = explain(
        plan(
            disk={"size_gib": 200, "type": "io2", "iops": 9000},
            permissions_boundary="arn:aws:iam::123456789012:policy/b",
            tags={"team": "vision", "cost": "7"},
        )
    )
    rows = dict(line.split("  ", 1) for line in shown)
    assert {name: rows[name].strip() for name in ("root disk", "boundary of roles", "tags")} == {
        "root disk": "io2, 200 GiB, 9000 IOPS, encrypted, on every node",
        "boundary of roles": "arn:aws:iam::123456789012:policy/b",
        "tags": "team=vision, cost=7",
    }


def test_a_plan_names_each_key_that_gives_rights_or_that_root_runs():
    """The file may be a stranger's."""
    of_a_stranger = {
        "boot": "sh /efs/strangers.sh\n",
        "image": "/a/strangers/image",
        "policies": ["arn:aws:iam::aws:policy/AdministratorAccess"],
        "data": {"mine": "s3://bucket/all rw"},
        "key_pair": "stranger",
        "mail": "stranger@h.test",
        "ssh_from": "anywhere",
    }
    granted = dict(describe(plan(**of_a_stranger)))["this file grants"]
    assert [part.partition(":")[0] for part in granted.split("; ")] == [*of_a_stranger]
    assert "AdministratorAccess" in granted and "change s3://bucket/all" in granted
    assert "this file grants" not in dict(describe(plan()))


def test_a_plan_names_each_key_by_which_others_things_count_for_the_cluster():
    named = {
        "network": {"head_subnet": "subnet-0123456789abcdef0"},
        "kms_key": "arn:aws:kms:us-east-1:999999999999:key/12345678-1234-1234-1234-123456789012",
        "bucket": "strangers",
        "file_system": "fs-01234567",
    }
    granted = list(grants.of(aws_spec(**named)))
    assert [part.partition(":")[0] for part in granted] == [*named]
    assert "subnet-0123456789abcdef0" in granted[0] and "999999999999" in granted[1] and "strangers" in granted[2]
    of_emr = {"logs": "s3://b.c/d", "node_role": "Strangers", "service_role": "Theirs"}
    (granted,) = grants.of(aws_spec(cloud="emr", emr=of_emr))
    assert "Strangers" in granted and "Theirs" in granted


def test_a_disk_smaller_than_the_image_is_refused():
    large = replace(FACTS, image=Image("ami-1", "mine", "x86_64", "/dev/sda1", 100))
    with raises_code("disk-size", "50", "/my/image", "100"):
        plan(large, image="/my/image", disk={"size_gib": 50})
    assert plan(large, image="/my/image", disk={"size_gib": 100}).spec.disk == {"size_gib": 100}


def test_a_separate_head_is_in_the_price_the_quotas_and_the_words():
    wanted = aws_spec(nodes=3, type="p4d.24xlarge", head={"type": "m5.large"})
    facts = offline_facts(wanted)
    assert facts and facts.head
    made = make_plan(wanted, facts)
    assert made.cost_usd_per_hour == pytest.approx(2 * 21.957642 + 0.096 + 0.045 + 2 * 0.005, abs=1e-4)
    assert [(one.name, one.needed) for one in facts.quotas if one.unit == "vCPU"] == [
        ("Running On-Demand P instances", 192),
        ("Running On-Demand Standard instances", 2),
    ]
    assert "1 × m5.large: the head, which does not train; 2 × p4d.24xlarge: workers" in "\n".join(explain(made))
    assert offline_facts(aws_spec(head={"type": "c99.large"})) is None


def test_unknown_type_is_allowed_and_its_price_unknown():
    made = make_plan(aws_spec(type="c99.large"), FACTS)
    assert made.cost_usd_per_hour is None
    assert any("the price of c99.large is not known" in warning for warning in warnings(made))


@pytest.mark.parametrize(
    ("fields", "facts", "shown"),
    [
        ({"ssh_from": "anywhere"}, FACTS, "open to the whole internet"),
        ({"type": "t3.large"}, FACTS, "burstable"),
        ({"slots": 5}, FACTS, "5 slots on 2 vCPUs"),
        ({"type": "p5.48xlarge"}, GPU_FACTS, "32 network cards, and only the first is used: `efa: yes` uses all"),
        ({"region": "eu-west-1"}, FACTS, "prices of us-east-1 (2026-11); eu-west-1 differs"),
        ({}, replace(FACTS, zones=("us-east-1c",)), "only us-east-1c offers c5.large"),
    ],
)
def test_warnings(fields, facts, shown):
    assert any(shown in warning for warning in warnings(make_plan(aws_spec(**fields), facts)))


def asked(spec, vcpus, **limits):
    """The quotas of a plan, with a limit by unit and nothing in use."""
    return tuple(replace(quota, limit=limits.get(quota.unit.split()[0], 100)) for quota in quotas.of(spec, vcpus))


def test_quotas_that_could_not_be_asked_are_listed_with_their_defaults():
    wanted = aws_spec(type="p5.48xlarge")
    facts = replace(GPU_FACTS, quotas=tuple(quotas.of(wanted, 192)), quotas_unknown="may not call x:Y")
    shown = warnings(make_plan(wanted, facts))
    assert "your quotas could not be asked: may not call x:Y" in shown
    assert "768 vCPUs count against your quota “Running On-Demand P instances” (L-417A185B)" in shown
    assert "2 Elastic IPs count against your quota “EC2-VPC Elastic IPs” (L-0263D0A3, 5 by default)" in shown
    assert "1 VPC counts against your quota “VPCs per Region” (L-F678F1CE, 5 by default)" in shown


def test_quotas_that_suffice_are_a_line_of_the_plan_and_no_warning():
    wanted = aws_spec()
    made = make_plan(wanted, replace(FACTS, quotas=asked(wanted, 2, vCPU=8)))
    assert any("8 of 8 vCPUs (0 in use), 2 of 100 Elastic IPs (0 in use), 1 of 100" in line for line in explain(made))
    assert not any("quota" in warning for warning in warnings(made))


def test_a_quota_that_suffices_for_fewer_nodes_is_a_warning():
    wanted = aws_spec(nodes=4, min=2)
    made = make_plan(wanted, replace(FACTS, quotas=asked(wanted, 2, vCPU=6)))
    (shown,) = (warning for warning in warnings(made) if "quota" in warning)
    assert "leaves 6 of 6 vCPUs in us-east-1, and 8 are needed: not all nodes can start" in shown


@pytest.mark.parametrize(
    ("limits", "message", "hint"),
    [
        (
            {"vCPU": 3},
            r"^nodes: at least 4 vCPUs .* leaves 3 of 3 in us-east-1 \(0 in use\)",
            "--desired-value 8",
        ),
        ({"vCPU": 0}, r"^nodes: at least 4 vCPUs needed", "--service-code ec2 --quota-code L-1216C47A"),
        ({"Elastic": 1}, r"^at least 2 Elastic IPs needed", "--quota-code L-0263D0A3"),
        ({"VPC": 0}, r"^at least 1 VPC needed", "--service-code vpc --quota-code L-F678F1CE"),
    ],
)
def test_a_quota_that_can_t_be_met_is_refused(limits, message, hint):
    wanted = aws_spec(nodes=4, min=2)
    with pytest.raises(SpecError, match=message) as refusal:
        make_plan(wanted, replace(FACTS, quotas=asked(wanted, 2, **limits)))
    assert hint in refusal.value.hint


@pytest.mark.parametrize(
    ("fields", "vcpus", "limit", "nearest"),
    [
        ({"nodes": 4, "min": 3}, 2, 5, "`nodes: 2` with `min: 2`. Request more"),
        ({"nodes": 2, "min": 2, "type": "c5.4xlarge"}, 16, 8, "`type: c5.xlarge`. Request more"),
        ({"nodes": 2, "min": 2, "type": "c5.4xlarge", "head": {"type": "m5.large"}}, 16, 1, ""),
    ],
)
def test_a_refused_quota_names_the_nearest_cluster_that_fits(fields, vcpus, limit, nearest):
    wanted = aws_spec(**fields)
    head = HeadFacts(2, 8, "x86_64") if "head" in fields else None
    counted = tuple(
        replace(one, limit=limit) for one in quotas.of(wanted, vcpus, 2 if head else None) if one.unit == "vCPU"
    )
    with pytest.raises(SpecError) as refusal:
        make_plan(wanted, replace(FACTS, vcpus=vcpus, head=head, quotas=counted))
    assert refusal.value.hint.startswith(f"The nearest that fits: {nearest}" if nearest else "Request more")


def test_an_ordinary_local_plan_warns_of_nothing():
    assert warnings(plan()) == []


@pytest.mark.parametrize("columns", [60, 80])
def test_a_plan_is_folded_beside_its_labels_on_a_narrow_terminal(columns):
    made = plan(nodes=4, image="ami-0123456789abcdef0")
    lines = "\n".join(explain(made, columns)).splitlines()
    assert max(map(len, lines)) <= columns
    assert [line for line in lines if line[0] == " "], "something was folded"
    assert " ".join(" ".join(lines).split()) == " ".join(" ".join(explain(made)).split())


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
    preferring = spec(zones=["us-east-1d"])
    assert make_plan(preferring, offline_facts(preferring)).zone == "us-east-1d"


def test_tables_say_where_they_are_from():
    for name in ("prices", "images", "regions", "quotas", "efs"):
        assert "2026" in table(name)["_source"]


def test_a_type_without_a_known_price_is_planned_offline():
    trainium = aws_spec(type="trn1.32xlarge", image="dlami-base")
    facts = offline_facts(trainium)
    assert facts and (facts.vcpus, facts.gpus, len(facts.cards)) == (128, 0, 8)
    assert make_plan(trainium, facts).cost_usd_per_hour is None


def test_types_with_a_price_are_types_of_ec2():
    assert not table("prices")["usd_per_hour"].keys() - table("instance_types")["types"].keys()
