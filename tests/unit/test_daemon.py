"""The agent that stays: what it does when it meets an error, its own or the cloud's."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from phalanx.node import daemon, failure, worker
from phalanx.node.aws import AwsError


class Enough(BaseException):
    """The test has seen what it wanted."""


@pytest.fixture
def serve(monkeypatch, tmp_path):
    """Serve as a worker whose every try ends with `error`, `tries` times; the errors that were told."""

    def run(error: Exception, tries: int, member: bool = False) -> list[str]:
        told: list[str] = []
        left = [error] * tries

        def work(_agent) -> None:
            raise left.pop() if left else Enough

        if member:
            (tmp_path / "opt/phalanx").mkdir(parents=True)
            (tmp_path / "opt/phalanx/roster.json").write_text("{}")
        agent = SimpleNamespace(
            settings=SimpleNamespace(head=False), log=SimpleNamespace(ship=lambda _: None), stream=None
        )
        monkeypatch.setattr(daemon, "Agent", lambda *_: agent)
        monkeypatch.setattr(worker, "serve", work)
        monkeypatch.setattr(daemon.time, "sleep", lambda _: None)
        monkeypatch.setattr(failure, "report", lambda _s, _a, step, error: told.append(f"{step}: {error}"))
        with pytest.raises(Enough):
            daemon.serve(agent.settings, SimpleNamespace(), str(tmp_path), agent)
        return told

    return run


def test_a_mistake_of_ours_is_told_at_once(serve):
    assert serve(KeyError("x"), 1) == ["agent: 'x'"]


def test_the_clouds_trouble_is_told_when_it_lasts(serve):
    refused = AwsError("PutItem", "AccessDenied", "no")
    assert serve(refused, 1) == []
    assert serve(refused, 2) == ["agent: PutItem: AccessDenied: no"]


def test_a_member_outlives_the_clouds_trouble(serve):
    assert serve(OSError("unreachable"), 9, member=True) == []
