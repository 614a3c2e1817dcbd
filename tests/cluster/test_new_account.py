"""What phalanx says in a new account: of a region that it has not enabled, each command says it with the remedy."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from terminals import Terminal, a_terminal

pytestmark = pytest.mark.cluster

SPEC = "name: new\ncloud: local\nregion: eu-south-1\nnodes: 1\ntype: c5.large\nkeep: no\nplacement: cluster\n"


@pytest.fixture(scope="module")
def terminal() -> Iterator[Terminal]:
    with a_terminal(SPEC) as terminal:
        terminal.phalanx("local", "account", "fresh")
        terminal.phalanx("local", "start")
        yield terminal


@pytest.mark.parametrize("command", [("plan",), ("plan", "--on-aws"), ("up",)])
def test_each_command_names_the_region_and_how_to_enable_it(terminal, command):
    done = terminal.phalanx(*command, "--json", check=False)
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["code"]) == (3, "region-off"), done.stdout
    assert "eu-south-1" in error["message"]
    assert "aws account enable-region --region-name eu-south-1" in error["hint"]


def test_the_doctor_names_it_too(terminal):
    terminal.phalanx("local", "start")
    done = terminal.phalanx("doctor", "--json", check=False)
    assert done.returncode == 1
    assert [one["check"] for one in json.loads(done.stdout)["findings"]] == ["region"]
