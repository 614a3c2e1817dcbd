"""Where the next page of a list begins."""

from __future__ import annotations

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
