"""Options of phalanx.yaml, by field of ClusterSpec, and whether a plan accepts a choice of them. Nothing is asked.

What the options name (subnets, a file system, reservations …) is invented: facts say that AWS has it.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from phalanx.errors import SpecError
from phalanx.plan.capacity import Reservation
from phalanx.plan.existing_vpc import INTERNET, NAT, ExistingVpc, Subnet
from phalanx.plan.facts import Facts, HeadFacts
from phalanx.plan.network_cards import Card
from phalanx.plan.plan import Plan, make_plan
from phalanx.spec.cloud_names import is_local
from phalanx.spec.spec import ClusterSpec

Choice = dict[str, Any]
POLICY = "arn:aws:iam::123456789012:policy/p"
BLOCK, RESERVATION = "cr-0123abcd", "cr-0123abce"
HEAD_SUBNET, WORKER_SUBNET = "subnet-0123456789abcdef0", "subnet-0123456789abcdef1"
FILE_SYSTEM, IMAGE, MINE = "fs-0123456789abcdef0", "ami-0123456789abcdef0", "mine"
BUCKETS = ("my-bucket", "other-bucket")
FAST, OTHER = "p5.48xlarge", "g5.12xlarge"
_BOTH_SUBNETS = {"head_subnet": HEAD_SUBNET, "worker_subnet": WORKER_SUBNET}

OPTIONS: dict[str, tuple[Any, ...]] = {
    "boot": ("touch /tmp/.booted\n", f": {'x' * 9000}\n"),
    "budget": ("$50",),
    "capacity": ("spot", RESERVATION, BLOCK),
    "data": ({"imagenet": f"s3://{BUCKETS[0]}/imagenet", "runs": f"s3://{BUCKETS[1]}/runs/ rw"},),
    "down_after_s": (7 * 24 * 3600,),
    "disk": ({"size_gib": 100}, {"type": "io2", "iops": 9000}),
    "efa": ("yes",),
    "file_system": (FILE_SYSTEM,),
    "head": ({"type": "m5.large"},),
    "idle_s": (1800,),
    "image": (IMAGE, "amazon-linux-2023"),
    "keep": ("no",),
    "key_pair": (MINE,),
    "lease_s": (8 * 3600,),
    "mail": ("me@example.com",),
    "min": (1, 2),
    "network": (
        {"cidr": "172.16.0.0/27"},
        {"cidr": "192.168.4.0/22"},
        {"access": "private"},
        {"access": "private", **_BOTH_SUBNETS},
        {"head_subnet": HEAD_SUBNET},
        _BOTH_SUBNETS,
    ),
    "node_timeout_s": (1200,),
    "nodes": (1, 4, 20),
    "permissions_boundary": (POLICY,),
    "placement": ("cluster", MINE),
    "policies": ((POLICY,),),
    "region": ("us-west-2",),
    "slots": (2,),
    "shared": ("/data",),
    "ssh_from": (("203.0.113.0/24", "198.51.100.7/32"), "anywhere"),
    "metrics": ("yes",),
    "lustre": ({"size_gib": 4800, "type": "persistent_2"},),
    "storage": ("head", "lustre"),
    "tags": ({"team": "vision"},),
    "throughput": ("elastic",),
    "zones": (("us-east-1a",), ("us-east-1b", "us-east-1a")),
    "type": (FAST, OTHER, (OTHER, FAST)),
}
# cfn-lint's rules are for one thread at a time.
_linting = threading.Lock()
_CARDS = tuple(Card(index, 2, "efa-only") for index in range(32))
_FACTS = Facts(
    "aws", "us-east-1", (), 2, memory_gib=4, strategies=("cluster",), cards=(), ssh_public_key="ssh-rsa A me"
)
_SIZES: dict[str, dict[str, Any]] = {
    FAST: {"gpus": 8, "vcpus": 192, "cards": _CARDS, "network_cards": 32},
    OTHER: {"gpus": 4, "vcpus": 48, "cards": _CARDS[:1]},
    "c5.large": {},
}


def planned(chosen: Mapping[str, Any], cloud: str = "aws") -> Plan | None:
    """Return the plan; None if it is refused, which must name one of the keys."""
    try:
        spec = ClusterSpec(**{**_given(chosen, cloud), **chosen})
        return make_plan(spec, _facts(spec))
    except SpecError as refusal:
        named = refusal.message.partition(":")[0]
        assert named in {*(field.removesuffix("_s") for field in OPTIONS), "type"}, refusal.message
        return None


def _given(chosen: Mapping[str, Any], cloud: str) -> Choice:
    """Return what every file has besides: on AWS, who may log in, or an image for private access."""
    basic = {"name": "pairs", "cloud": cloud, "nodes": 2, "min": 1}
    if is_local(cloud):
        return basic
    is_private = "access" in (chosen.get("network") or {})
    return {**basic, "image": "dlami-base"} if is_private else {**basic, "ssh_from": "203.0.113.0/24"}


def _facts(spec: ClusterSpec) -> Facts:
    first, *others = (replace(_FACTS, **_SIZES[one]) for one in spec.types)
    zones = (f"{spec.region}b", f"{spec.region}a")
    shared = {"cloud": spec.cloud, "region": spec.region, "zones": zones}
    shared["stand_ins"] = 0 if is_local(spec.cloud) else None
    shared["head"] = HeadFacts(2, 8, "x86_64") if spec.head else None
    shared["reservation"], shared["vpc"] = _reservation(spec), _vpc(spec)
    return replace(first, **shared, others=tuple(replace(one, **shared) for one in others))


def _reservation(spec: ClusterSpec) -> Reservation | None:
    kind = FAST if spec.reservation == BLOCK else "c5.large"
    if not spec.reservation:
        return None
    return Reservation(spec.reservation, spec.reservation == BLOCK, "active", kind, f"{spec.region}a", 4)


def _vpc(spec: ClusterSpec) -> ExistingVpc | None:
    if not spec.subnets:
        return None
    head = Subnet(HEAD_SUBNET, "vpc-0123456789abcdef0", f"{spec.region}a", "10.1.0.0/24", 251, INTERNET)
    workers = replace(head, subnet_id=WORKER_SUBNET, cidr="10.1.1.0/24", way_out=NAT)
    if spec.is_private:
        head, workers = (replace(one, way_out="", table=f"rtb-{one.cidr}") for one in (head, workers))
    both = head, head if len(set(spec.subnets)) == 1 else workers
    return ExistingVpc(head.vpc, True, True, *both, ("10.1.0.0/16",))


@functools.cache
def cfn_lint(region: str) -> Callable[[str], Iterator[Any]]:
    """Return cfn-lint with its rules, whose reading takes a fifth of a document's time."""
    from cfnlint.config import ConfigMixIn, ManualArgs
    from cfnlint.decode.decode import decode_str
    from cfnlint.runner import Runner

    runner = Runner(ConfigMixIn(**ManualArgs(include_checks=["I"], regions=[region])))

    def lint(document: str) -> Iterator[Any]:
        template, mistakes = decode_str(document)
        yield from mistakes
        if template is not None:
            yield from runner.validate_template(template)

    return lint


def complaints(plan: Plan) -> list[str]:
    """Return what cfn-lint says of a plan's document."""
    from phalanx.template import synthesize

    with _linting:
        return [f"{one.rule.id} {one.message} {one.path}" for one in cfn_lint(plan.spec.region)(synthesize(plan))]
