"""The proof that nodes accept logins: what a node is given up for, and what it is not."""

from __future__ import annotations

from fake_cloud import roster

from phalanx.node import proof
from phalanx.node.command import CommandError


class Logins:
    """Stands in for ssh: each attempt takes so many seconds and fails, except the last one."""

    def __init__(self, monkeypatch, *took_s: float) -> None:
        self.now_s, self._took_s = 1000.0, list(took_s)
        monkeypatch.setattr("time.monotonic", lambda: self.now_s)
        monkeypatch.setattr("time.sleep", self._pass)
        monkeypatch.setattr(proof, "run", self._run)

    def _pass(self, seconds: float) -> None:
        self.now_s += seconds

    def _run(self, argv: list[str], timeout_s: float, **_options: object) -> str:
        self.now_s += self._took_s.pop(0)
        if self._took_s:
            raise CommandError(" ".join(argv), 124, f"time is up after {timeout_s} s")
        return ""


def refused(monkeypatch, *took_s: float) -> dict[str, str]:
    Logins(monkeypatch, *took_s)
    return proof.log_in(roster(2).nodes[1:])


def test_a_node_that_refuses_for_the_whole_time_is_given_up(monkeypatch):
    assert list(refused(monkeypatch, 30.5, 1)) == [roster(2).nodes[1].instance_id]


def test_a_head_that_stood_still_itself_gives_up_no_node(monkeypatch):
    assert refused(monkeypatch, 41, 1) == {}
