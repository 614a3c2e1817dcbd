"""The local cloud refuses what AWS refuses, with AWS's own error codes: the requests in data/refusals.yaml."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import account
import botocore.session
import pytest
import yaml
from stack_fakes import Stacks

TABLE = yaml.safe_load((Path(__file__).parents[1] / "data/refusals.yaml").read_text())


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


def test_the_table_is_long_and_every_row_has_its_source():
    model = functools.cache(botocore.session.get_session().get_service_model)
    sources = [_source(model(case[0].partition(".")[0]), case) for case in TABLE["refusals"]]
    assert all(source.startswith("https://docs.aws.amazon.com/") for source in sources)
    own = [case for case, source in zip(TABLE["refusals"], sources, strict=True) if _names_operation(source, case)]
    assert len(own) >= 100
    assert {case[0].partition(".")[0] for case in own} == set(TABLE["pages"])
    assert {case[0].partition(".")[0] for case in TABLE["refusals"]} == set(TABLE["sources"])


def _source(model: Any, case: list[Any]) -> str:
    """Return the operation's page if it lists the error, as AWS's model behind the page does; else the service's."""
    (service, _, operation), code = case[0].partition("."), case[2]
    described = model.operation_model(operation)
    name = TABLE["names"].get(code, code)
    listed = {text for error in described.error_shapes for text in (error.name, error.error_code)}
    if service in TABLE["pages"] and (name in listed or name in described.documentation):
        return TABLE["pages"][service].format(operation=operation)
    return TABLE["sources"][service]


def _names_operation(source: str, case: list[Any]) -> bool:
    return source.endswith(f"/API_{case[0].partition('.')[2]}.html")
