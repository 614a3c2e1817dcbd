"""A job must not get the role of the instance that it runs on, nor what that role may do: write the roster."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from local_clouds import api

from conftest import Terminal, a_cluster

pytestmark = pytest.mark.cluster

HERE = Path(__file__).parent
SPEC = "name: guests\ncloud: local\nnodes: 2\nmin: 2\ntype: c5.large\nshared: /efs\nkeep: no\n"
HEAD, WORKER = "deeplearning-master", "deeplearning-worker2"
NODES = {"head": WORKER, "worker2": HEAD}


@pytest.fixture(scope="module")
def lab() -> Iterator[Terminal]:
    with a_cluster(SPEC) as terminal:
        yield terminal


def script(terminal: Terminal, name: str) -> str:
    """A file of this directory, where all nodes see it."""
    text = (HERE / name).read_text()
    terminal.on("head", f"cat > /efs/{name} <<'END'\n{text}END")
    return f"/efs/{name}"


def outputs(terminal: Terminal) -> dict[str, str]:
    (stack,) = api(terminal, "cloudformation").describe_stacks(StackName="guests")["Stacks"]
    return {output["OutputKey"]: output["OutputValue"] for output in stack["Outputs"]}


@pytest.mark.parametrize("node", NODES)
def test_no_way_leads_a_job_to_the_credentials_of_its_instance(lab, node):
    reach = script(lab, "reach_metadata.py")
    own = lab.on(node, "hostname -I").split()[0]
    gateway = lab.on(node, "ip route show default").split()[2]
    found = json.loads(lab.on(node, f"python3 {reach} {own} {gateway} {NODES[node]}"))
    assert len(found) > 20
    assert ", ".join(way for way, brought in found.items() if brought) == ""


def test_a_job_on_the_head_can_not_make_itself_the_authority(lab):
    forge = script(lab, "forge_roster.py")
    said = lab.on("head", f"cd $(mktemp -d) && python3 {forge} {outputs(lab)['RosterTable']} {WORKER}")
    assert "the table: forged" not in said
    assert "the worker: root\n" not in said
    assert "the table: " in said and "the worker: " in said
