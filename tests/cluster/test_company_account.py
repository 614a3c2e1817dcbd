"""A cluster in the account of a company, whose organisation shares a VPC and forbids what companies forbid."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from terminals import Terminal, a_terminal, assert_nothing_is_left

pytestmark = pytest.mark.cluster

PLAIN = "name: {name}\ncloud: local\nnodes: 2\ntype: m5.large\nkeep: no\n"


@pytest.fixture(scope="module")
def account() -> Iterator[dict[str, Any]]:
    """Return the two lines that clusters of this account need, and start no node."""
    with a_terminal(PLAIN.format(name="company")) as terminal:
        found = json.loads(terminal.phalanx("local", "account", "landing-zone", "--json").stdout)
        head, workers = found["subnets"]
        network = f"network: {{access: private, head_subnet: {head}, worker_subnet: {workers}}}\n"
        yield {
            "terminal": terminal,
            "network": network,
            "private": "network: {access: private}\n",
            "boundary": f"permissions_boundary: {found['permissions_boundary']}\n",
        }


def write(account: dict[str, Any], *lines: str) -> Terminal:
    terminal = account["terminal"]
    (terminal.directory / "phalanx.yaml").write_text(
        PLAIN.format(name="company") + "".join(account[one] for one in lines)
    )
    return terminal


def test_a_cluster_comes_up_in_a_shared_vpc_and_leaves_nothing(account):
    terminal = write(account, "network", "boundary")
    assert "can't be seen" in terminal.phalanx("plan").stdout + terminal.phalanx("plan").stderr
    terminal.phalanx("up")
    processes = terminal.local_cloud_processes()
    assert terminal.phalanx("run", "--launcher", "mpi", "--", "hostname").stdout.count("ip-10-64-") == 4
    terminal.phalanx("down", "--yes")
    assert_nothing_is_left(terminal, processes)


@pytest.mark.parametrize(
    ("lines", "missing"), [(("private", "boundary"), "head_subnet"), (("network",), "permissions_boundary")]
)
def test_what_the_organisation_forbids_is_named_with_what_to_write(account, lines, missing):
    refused = write(account, *lines).phalanx("up", check=False)
    assert refused.returncode
    assert missing in refused.stderr[refused.stderr.index("The cause:") :]


def test_a_public_cluster_is_refused_before_anything_is_made(account):
    refused = write(account, "boundary").phalanx("plan", "--json", check=False)
    assert json.loads(refused.stdout)["error"]["code"] == "blocked-public-access"


def test_the_doctor_names_what_the_organisation_forbids(account):
    terminal = account["terminal"]
    terminal.phalanx("local", "start")
    asked = terminal.phalanx("doctor", "--cloud", "local", "--json", check=False)
    findings = json.loads(asked.stdout)["findings"]
    verdicts = {one["check"]: one["verdict"] for one in findings}
    assert asked.returncode == 1
    assert {check for check, verdict in verdicts.items() if verdict == "stops"} == {
        "vpc-block-public-access",
        "new-vpc",
    }
    assert {verdicts[one] for one in ("tag-policy", "metadata", "shared-subnets")} == {"note"}
    assert "unknown" not in verdicts.values()
    assert not any(secret in asked.stdout for secret in ("123456789012", "999999999999", "user/admin"))
    shown = terminal.phalanx("doctor", "--cloud", "local", check=False).stdout
    assert all(one["check"] in shown for one in findings)
