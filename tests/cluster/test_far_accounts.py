"""A cluster's life in other partitions of AWS: China, GovCloud in FIPS mode, the European Sovereign Cloud."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from terminals import Terminal, a_terminal, assert_nothing_is_left

pytestmark = [pytest.mark.cluster, pytest.mark.long]

REGIONS = {"china": "cn-north-1", "gov": "us-gov-west-1", "eusc": "eusc-de-east-1"}
SPEC = "name: far\ncloud: local\nregion: {}\nnodes: 2\ntype: m5.large\nkeep: no\n"


@pytest.fixture(scope="module", params=REGIONS)
def account(request) -> Iterator[tuple[str, Terminal]]:
    with a_terminal(SPEC.format(REGIONS[request.param])) as terminal:
        terminal.phalanx("local", "account", request.param)
        yield request.param, terminal


def test_a_cluster_comes_up_runs_jobs_and_leaves_nothing(account):
    profile, terminal = account
    terminal.phalanx("up")
    processes = terminal.local_cloud_processes()
    assert terminal.phalanx("run", "--launcher", "mpi", "--", "hostname").stdout.count("ip-10-") == 4
    listed = terminal.on("head", "grep -ho '^HostKey .*' /etc/ssh/sshd_config.d/*; ls /etc/ssh/phalanx")
    assert ("ed25519" in listed) == (profile != "gov")
    told = json.loads(terminal.phalanx("status", "--json").stdout)
    assert told["region"] == REGIONS[profile]
    terminal.phalanx("down", "--yes")
    assert_nothing_is_left(terminal, processes)


def test_a_region_of_another_partition_is_refused_within_5_s_with_the_cause(account):
    profile, terminal = account
    for region in {"us-east-1", *REGIONS.values()} - {REGIONS[profile]}:
        there = terminal.beside(f"in-{region}", SPEC.format(region))
        began_s = time.monotonic()
        refused = there.phalanx("up", "--json", check=False)
        error = json.loads(refused.stdout)["error"]
        assert (error["code"], time.monotonic() - began_s < 5) == ("other-partition", True), refused.stdout
        assert region in error["message"] and "phalanx local account" in error["hint"]
