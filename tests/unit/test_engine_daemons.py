"""EngineDaemons that engines request: each agent gets one answer."""

from __future__ import annotations

import pytest

from phalanx.runner.head.engine_daemons import EngineDaemons, Request, daemon_failure
from phalanx.runner.starter.answers import REFUSED

ONE = Request(11, "n1", "orted 1")
TWO = Request(12, "n2", "orted 2")


@pytest.fixture
def answers() -> list[tuple[int, int]]:
    return []


@pytest.fixture
def daemons(answers) -> EngineDaemons:
    return EngineDaemons(lambda agent, code: answers.append((agent, code)))


def test_a_waiting_daemon_is_started_once_its_node_may_be_reached(daemons):
    daemons.hold(ONE)
    daemons.hold(TWO)
    assert daemons.due(lambda node: node == "n2") == [TWO]
    assert daemons.due(lambda _node: True) == [ONE]
    assert daemons.due(lambda _node: True) == []


def test_a_daemon_that_still_waits_is_refused_and_a_started_one_is_not(daemons, answers):
    daemons.hold(ONE)
    daemons.hold(TWO)
    daemons.due(lambda node: node == "n1")
    for _ in range(2):
        daemons.refuse_all()
    assert answers == [(12, REFUSED)]


def test_an_agent_gets_one_answer_with_its_daemons_end(daemons, answers):
    daemons.started(5, ONE.agent)
    assert daemons
    assert [daemons.ended(5, -9), daemons.ended(5, 0)] == [True, False]
    assert not daemons
    assert answers == [(11, -9)]


def test_the_end_of_another_process_answers_no_agent(daemons, answers):
    daemons.started(5, ONE.agent)
    assert not daemons.ended(4, 1)
    assert (bool(daemons), answers) == (True, [])


@pytest.mark.parametrize(("code", "failure"), [(0, 0), (1, 0), (143, 0), (-15, 0), (255, 0), (137, -9), (-9, -9)])
def test_a_daemon_may_exit_as_its_engine_likes_but_not_be_killed(code, failure):
    assert daemon_failure(code) == failure
