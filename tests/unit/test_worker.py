"""A worker's membership: what it asks of the table before it is a member."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from rosters import ROSTER, a_node

from phalanx.node.settings import ON_AWS
from phalanx.node.validate import Invalid
from phalanx.node.worker import Worker


class Beat:
    """A worker's end of the beats, without a network."""

    def __init__(self) -> None:
        self.head, self.unanswered, self.announced, self.generation = "", 0, 0, 0
        self.heard = self.unknown = False

    def aim(self, head: str) -> None:
        self.head = head or self.head


class Table:
    def __init__(self) -> None:
        self.read: list[str] = []
        self.head_address = "10.0.1.11"

    def get(self, item: str, consistent: bool = True) -> dict:
        self.read.append(item)
        return {"head_address": self.head_address} if item == "generation" else {}

    def get_together(self, *items: str) -> list[dict]:
        return [self.get(item) for item in items]


@pytest.fixture
def table() -> Table:
    return Table()


def a_worker(table: Table, head_address: str) -> Worker:
    me = a_node(2)
    agent = SimpleNamespace(
        settings=SimpleNamespace(file_system="fs-1", networks="10.0.0.0/16", patience=ON_AWS),
        describe=lambda: me,
        table=table,
        nodes=4,
        head_address=head_address,
        report=lambda *_, **__: None,
    )
    return Worker(agent, Beat())


def test_a_worker_whose_head_answers_does_not_read_the_table_until_there_is_a_roster(table):
    worker = a_worker(table, "10.0.1.11")
    assert worker.turn() < 1 and worker.beat.head == "10.0.1.11"
    worker.beat.heard = True
    assert worker.turn() > 60 and table.read == []
    worker.beat.announced = 1
    worker.turn()
    assert table.read[0].startswith("roster") and len(table.read) == 2


@pytest.mark.parametrize(("known", "unanswered"), [("", 0), ("10.0.1.99", 1)])
def test_a_worker_that_knows_no_head_that_answers_finds_it_in_the_table(table, known, unanswered):
    worker = a_worker(table, known)
    worker.beat.unanswered = unanswered
    worker.turn()
    assert table.read == ["generation"] and worker.beat.head == "10.0.1.11"


@pytest.mark.parametrize("address", ["10.1.0.4", "10.0.1.11 /etc nfs defaults", "10.0.1.11\nx", "deeplearning-master"])
def test_a_head_whose_address_is_none_of_the_cluster_s_network_is_not_followed(table, address):
    table.head_address = address
    worker = a_worker(table, "")
    with pytest.raises(Invalid):
        worker.turn()
    assert worker.beat.head == ""


def test_a_worker_keeps_what_it_has_when_the_roster_is_newer_and_says_so_once(table):
    worker, said = a_worker(table, "10.0.1.11"), []
    worker.agent.log = SimpleNamespace(say=said.append)
    worker.applied = 3
    worker.beat.heard, worker.beat.announced = True, 4
    newer = {"generation": 4, "roster": json.dumps({**json.loads(ROSTER.to_json()), "format": 2})}
    table.get_together = lambda *items: [newer, {"generation": 4}]
    for _ in range(3):
        worker.turn()
    assert worker.applied == 3
    reason = "was made by a newer phalanx (format 2; this one reads 1): pip install -U phalanx"
    assert said == [f"the cluster's roster {reason}; generation 3 stays"]
