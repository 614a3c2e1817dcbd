"""Options of phalanx.yaml in random combinations: each is refused by a plan, or its document passes cfn-lint.

PHALANX_COMBINATIONS sets how many are tried, and PHALANX_SEED which (`make soak PART=combinations`).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from itertools import combinations
from typing import Any

from clusters import FACTS, aws_spec
from hypothesis import HealthCheck, event, given, seed, settings
from hypothesis import strategies as st

from phalanx.errors import SpecError
from phalanx.plan.capacity import Reservation
from phalanx.plan.existing_vpc import INTERNET, NAT, ExistingVpc, Subnet
from phalanx.plan.network_cards import Card
from phalanx.plan.plan import HeadFacts, Plan, make_plan
from phalanx.spec.spec import ClusterSpec
from phalanx.template import LIMIT_BYTES, request, synthesize

NUMBER = int(os.environ.get("PHALANX_COMBINATIONS", "20"))
SEED = int(os.environ.get("PHALANX_SEED", "1"))
ARN = "arn:aws:iam::123456789012:policy/p"
BLOCK = Reservation("cr-0123abcd", True, "active", "p5.48xlarge", "us-east-1a", 4)
HEAD = Subnet("subnet-0123456789abcdef0", "vpc-0123456789abcdef0", "us-east-1a", "10.1.0.0/24", 251, INTERNET)
WORKERS = replace(HEAD, subnet_id="subnet-0123456789abcdef1", cidr="10.1.1.0/24", way_out=NAT)
CARDS = tuple(Card(index, 2, "efa-only") for index in range(32))

OPTIONS: dict[str, tuple[Any, ...]] = {
    "boot": ("apt-get update\n", "x" * 9000),
    "budget": ("$50",),
    "capacity": ("spot", "cr-0123abcd"),
    "data": ({"imagenet": "s3://my-bucket/imagenet", "runs": "s3://other-bucket/runs/ rw"},),
    "down_after_s": (7 * 24 * 3600,),
    "disk": ({"size_gib": 100}, {"type": "io2", "iops": 9000}),
    "efa": ("yes",),
    "file_system": ("fs-0123456789abcdef0",),
    "head": ({"type": "m5.large"},),
    "idle_s": (1800,),
    "image": ("ami-0123456789abcdef0", "amazon-linux-2023"),
    "keep": ("no",),
    "key_pair": ("mine",),
    "lease_s": (8 * 3600,),
    "mail": ("me@example.com",),
    "network": (
        {"cidr": "172.16.0.0/27"},
        {"cidr": "192.168.4.0/22"},
        {"access": "private"},
        {"access": "private", "head_subnet": HEAD.subnet_id, "worker_subnet": WORKERS.subnet_id},
        {"head_subnet": HEAD.subnet_id},
        {"head_subnet": HEAD.subnet_id, "worker_subnet": WORKERS.subnet_id},
    ),
    "node_timeout_s": (1200,),
    "nodes": (1, 4, 20),
    "permissions_boundary": (ARN,),
    "placement": ("cluster", "mine"),
    "policies": ((ARN,),),
    "slots": (2,),
    "shared": ("/data",),
    "ssh_from": (("203.0.113.0/24", "198.51.100.7/32"), "anywhere"),
    "metrics": ("yes",),
    "lustre": ({"size_gib": 4800, "type": "persistent_2"},),
    "storage": ("head", "lustre"),
    "tags": ({"team": "vision"},),
    "throughput": ("elastic",),
    "zones": (("us-east-1a",), ("us-east-1b", "us-east-1a")),
    "type": ("p5.48xlarge", "g5.8xlarge"),
}
FACTS_BY_TYPE = {
    "p5.48xlarge": replace(FACTS, gpus=8, vcpus=192, cards=CARDS, network_cards=32, strategies=("cluster",)),
    "g5.8xlarge": replace(FACTS, gpus=1, vcpus=32, cards=CARDS[:1], strategies=("cluster",)),
    "c5.large": replace(FACTS, cards=(), strategies=("cluster",)),
}


def planned(fields: dict[str, Any]) -> Plan | None:
    """Return the plan; None if it is refused, which must name one of the keys."""
    try:
        is_private = "access" in (fields.get("network") or {})
        private = {"ssh_from": "", "image": "dlami-base"} if is_private else {}
        spec = aws_spec(**{"nodes": 2, "min": 1, **private, **fields})
        reservation = BLOCK if spec.reservation else None
        workers = HEAD if len(set(spec.subnets)) == 1 else WORKERS
        vpc = ExistingVpc(HEAD.vpc, True, True, HEAD, workers, ("10.1.0.0/16",)) if spec.subnets else None
        if vpc and is_private:
            closed = (replace(one, way_out="", table=f"rtb-{one.cidr}") for one in (HEAD, workers))
            vpc = replace(vpc, **dict(zip(("head", "workers"), closed, strict=True)))
        facts = replace(FACTS_BY_TYPE[spec.type], cloud="aws", reservation=reservation, vpc=vpc)
        return make_plan(spec, replace(facts, head=HeadFacts(2, 8, "x86_64") if spec.head else None))
    except SpecError as refusal:
        assert refusal.message.partition(":")[0] in {*(key.removesuffix("_s") for key in OPTIONS), "type"}, (
            refusal.message
        )
        return None


def test_every_pair_of_options_makes_a_document_that_fits_or_is_refused():
    refused = 0
    for one, other in combinations(sorted(OPTIONS), 2):
        for first in OPTIONS[one]:
            for second in OPTIONS[other]:
                plan = planned({one: first, other: second})
                refused += plan is None
                assert plan is None or len(request(plan)[0].encode()) <= LIMIT_BYTES
    assert 10 < refused < 200


def combinations_of_options() -> st.SearchStrategy[dict[str, Any]]:
    """Choose a value for some of the options."""
    names = st.lists(st.sampled_from(sorted(OPTIONS)), min_size=2, max_size=9, unique=True)
    return names.flatmap(lambda keys: st.fixed_dictionaries({key: st.sampled_from(OPTIONS[key]) for key in keys}))


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


@seed(SEED)
@settings(max_examples=NUMBER, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
@given(fields=combinations_of_options())
def test_random_combinations_pass_cfn_lint(fields):
    plan = planned(fields)
    event("refused" if plan is None else "linted")
    if plan is not None:
        found = cfn_lint(plan.spec.region)(synthesize(plan))
        assert [f"{one.rule.id} {one.message} {one.path}" for one in found] == []


def test_every_option_is_in_the_combinations():
    """Of clusters on AWS: another service, and what only names them, have tests of their own."""
    known = {one.name for one in fields(ClusterSpec)}
    assert known - {"name", "cloud", "region", "min", "emr", "other_types"} == set(OPTIONS)
