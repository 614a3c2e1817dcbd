"""Options of phalanx.yaml in random combinations: each is refused by a plan, or its document passes cfn-lint.

PHALANX_COMBINATIONS sets how many are tried.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from dataclasses import replace
from itertools import combinations
from typing import Any

from clusters import FACTS, aws_spec

from phalanx.errors import SpecError
from phalanx.plan.capacity import Reservation
from phalanx.plan.existing_vpc import INTERNET, NAT, ExistingVpc, Subnet
from phalanx.plan.network_cards import Card
from phalanx.plan.plan import HeadFacts, Plan, make_plan
from phalanx.template import LIMIT_BYTES, request, synthesize

NUMBER = int(os.environ.get("PHALANX_COMBINATIONS", "20"))
CFN_LINT = "from cfnlint.runner import main; import sys; sys.exit(main())"
ARN = "arn:aws:iam::123456789012:policy/p"
BLOCK = Reservation("cr-0123abcd", True, "active", "p5.48xlarge", "us-east-1a", 4)
HEAD = Subnet("subnet-0123456789abcdef0", "vpc-0123456789abcdef0", "us-east-1a", "10.1.0.0/24", 251, INTERNET)
WORKERS = replace(HEAD, subnet_id="subnet-0123456789abcdef1", cidr="10.1.1.0/24", way_out=NAT)
CARDS = tuple(Card(index, 2, "efa-only") for index in range(32))

OPTIONS: dict[str, tuple[Any, ...]] = {
    "capacity": ("spot", "cr-0123abcd"),
    "disk": ({"size_gib": 100}, {"type": "io2", "iops": 9000}),
    "efa": ("yes",),
    "file_system": ("fs-0123456789abcdef0",),
    "head": ({"type": "m5.large"},),
    "image": ("ami-0123456789abcdef0", "amazon-linux-2023"),
    "keep": ("no",),
    "key_pair": ("mine",),
    "lease_s": (8 * 3600,),
    "network": (
        {"cidr": "172.16.0.0/27"},
        {"cidr": "192.168.4.0/22"},
        {"head_subnet": HEAD.subnet_id},
        {"head_subnet": HEAD.subnet_id, "worker_subnet": WORKERS.subnet_id},
    ),
    "nodes": (1, 4, 20),
    "permissions_boundary": (ARN,),
    "placement": ("cluster", "mine"),
    "policies": ((ARN,),),
    "slots": (2,),
    "ssh_from": (("203.0.113.0/24", "198.51.100.7/32"), "anywhere"),
    "metrics": ("yes",),
    "storage": ("head",),
    "tags": ({"team": "vision"},),
    "throughput": ("elastic",),
    "type": ("p5.48xlarge", "g5.8xlarge"),
}
FACTS_BY_TYPE = {
    "p5.48xlarge": replace(FACTS, gpus=8, vcpus=192, cards=CARDS, network_cards=32, strategies=("cluster",)),
    "g5.8xlarge": replace(FACTS, gpus=1, vcpus=32, cards=CARDS[:1], strategies=("cluster",)),
    "c5.large": replace(FACTS, cards=(), strategies=("cluster",)),
}


def chosen(generator: random.Random) -> dict[str, Any]:
    """Choose a value for some of the options."""
    keys = generator.sample(sorted(OPTIONS), generator.randint(2, 8))
    return {key: generator.choice(OPTIONS[key]) for key in keys}


def planned(fields: dict[str, Any]) -> Plan | None:
    """Return the plan; None if it is refused, which must name one of the keys."""
    try:
        spec = aws_spec(**{"nodes": 2, "min": 1, **fields})
        reservation = BLOCK if spec.reservation else None
        workers = HEAD if len(set(spec.subnets)) == 1 else WORKERS
        vpc = ExistingVpc(HEAD.vpc, True, True, HEAD, workers) if spec.subnets else None
        facts = replace(FACTS_BY_TYPE[spec.type], cloud="aws", reservation=reservation, vpc=vpc)
        return make_plan(spec, replace(facts, head=HeadFacts(2, 8, "x86_64") if spec.head else None))
    except SpecError as refusal:
        assert refusal.message.partition(":")[0] in (*OPTIONS, "type"), refusal.message
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


def test_random_combinations_pass_cfn_lint(tmp_path):
    generator = random.Random(1)
    plans = [plan for _ in range(NUMBER) if (plan := planned(chosen(generator)))]
    assert len(plans) > NUMBER / 4
    files = [tmp_path / f"{number}.json" for number in range(len(plans))]
    for file, plan in zip(files, plans, strict=True):
        file.write_text(synthesize(plan))
    lint = subprocess.run(
        [sys.executable, "-c", CFN_LINT, "--include-checks", "I", "--", *map(str, files)],
        capture_output=True,
        text=True,
        timeout=30 * NUMBER,
    )
    assert (lint.returncode, lint.stdout, lint.stderr) == (0, "", "")
