"""Where the next page of a list begins."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from error_codes import raises_code

from phalanx.aws import aws


@pytest.mark.parametrize(
    ("service", "page", "found"),
    [
        ("ec2", {"NextToken": "a"}, {"NextToken": "a"}),
        ("ec2", {"NextToken": ""}, {}),
        ("lambda", {"NextMarker": "a"}, {"Marker": "a"}),
        ("emr", {"Marker": "a"}, {"Marker": "a"}),
        ("dynamodb", {"LastEvaluatedTableName": "t"}, {"ExclusiveStartTableName": "t"}),
        ("efs", {"Marker": "sent", "NextMarker": "a"}, {"Marker": "a"}),
        ("efs", {"Marker": "sent"}, {}),
    ],
)
def test_each_service_has_its_own_words(service, page, found):
    assert aws.next_page(service, page, {"Marker": "sent"}) == found


def test_a_page_that_comes_again_is_an_error():
    with raises_code("endless-list", "ec2"):
        aws.next_page("ec2", {"NextToken": "a"}, {"NextToken": "a"})


def test_an_answer_that_is_no_services_is_never_an_empty_list(monkeypatch):
    def list_of_json():
        raise AttributeError("'list' object has no attribute 'get'")

    monkeypatch.setattr(aws.Aws, "client", lambda *_: SimpleNamespace(list_tables=list_of_json))
    with raises_code("call-failed", "dynamodb:ListTables"):
        list(aws.Aws("us-east-1").pages("dynamodb", "list_tables", "TableNames"))
