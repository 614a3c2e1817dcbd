"""The roster as JSON, and look-ups in it."""

from __future__ import annotations

import json

import pytest
from rosters import ROSTER, a_node

from phalanx.node.roster import worker_name, worker_number


def test_the_json_has_the_documented_shape():
    data = json.loads(ROSTER.to_json())
    assert data["format"] == 1
    assert data["nodes"][0]["head"] is True
    assert data["missing"] == [{"name": "deeplearning-worker3", "reason": "no capacity"}]


@pytest.mark.parametrize("key", ["deeplearning-worker2", "i-2", "10.0.1.12", "ip-10-0-1-12"])
def test_a_node_is_found_by_every_name_it_has(key):
    assert ROSTER.find(key) == a_node(2)


def test_the_head_is_worker_one_and_master():
    assert ROSTER.head == ROSTER.find("deeplearning-master") == ROSTER.find("deeplearning-worker1")
    assert ROSTER.find("deeplearning-worker9") is None


def test_numbers_sort_as_numbers():
    names = [worker_name(number) for number in (10, 9, 2)]
    assert sorted(names, key=worker_number) == [worker_name(2), worker_name(9), worker_name(10)]
