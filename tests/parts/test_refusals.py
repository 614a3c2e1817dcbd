"""The local cloud refuses what AWS refuses, with AWS's own error codes: the requests in data/refusals.yaml."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import account
import pytest
import yaml
from fleet_fakes import forget_resources
from stack_fakes import Stacks, stacks

TABLE = yaml.safe_load((Path(__file__).parents[1] / "data/refusals.yaml").read_text())


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stacks]:
    with stacks(tmp_path_factory.mktemp("state")) as running:
        yield running
        forget_resources(running.context.account)


@pytest.fixture(scope="module")
def furnished(cloud: Stacks) -> dict[str, Any]:
    return account.furnished(cloud)


@pytest.fixture(scope="module")
def clients(cloud: Stacks) -> dict[str, Any]:
    return {service: cloud.plain_client(service) for service in TABLE["sources"]}


@pytest.mark.parametrize("case", TABLE["refusals"], ids=lambda case: f"{case[0]}: {case[2]}")
def test_a_request_that_aws_refuses_is_refused_with_its_code(clients, furnished, case):
    (service, _, operation), given, code = case[0].partition("."), *case[1:]
    assert account.refusal(clients[service], operation, given, furnished) == code


def test_the_table_is_long_and_every_service_has_its_source():
    assert {case[0].partition(".")[0] for case in TABLE["refusals"]} == set(TABLE["sources"])
    assert len(TABLE["refusals"]) > 100
