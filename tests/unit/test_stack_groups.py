"""The stacks of a job's ranks: checked as if an attacker had written them, and grouped so that the odd one is first."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from error_codes import raises_code

from phalanx.cli.stacks import details, summary, to_json
from phalanx.jobs import rank_stacks as stacks
from phalanx.runner.verbs import inquiry

JOB = {"asked": ["worker1", "worker2"], "ended": ["9"], "problem": ""}


def process(rank: str, *frames: tuple[str, str, int, bool], **more: Any) -> dict[str, Any]:
    threads = [{"name": "MainThread", "frames": [list(frame) for frame in frames]}] if frames else []
    found = {
        "rank": rank,
        "number": 1,
        "pid": 7,
        "name": "python",
        "state": "S",
        "wchan": "",
        "cpu_s": 1.5,
        "reads": "",
    }
    return {**found, "threads": threads, **more}


def answer(*processes: dict[str, Any], node: str = "worker1", tool: str = "") -> dict[str, Any]:
    return {"node": node, "tool": tool, "processes": list(processes)}


def checked(*nodes: dict[str, Any]) -> stacks.JobStacks:
    return stacks._checked("job", [JOB, *nodes])


WAITS = (("wait", "torch/distributed.py", 2501, False), ("all_reduce", "train.py", 71, True))
READS = (("read", "data.py", 88, True), ("<module>", "train.py", 60, True))


def test_the_smallest_group_is_first_and_a_line_ends_in_the_job_s_own_code():
    found = checked(answer(*(process(str(rank), *(READS if rank == 3 else WAITS)) for rank in range(8))))
    assert list(summary(found, found.groups())) == [
        "rank 9 has ended",
        "rank 3 waits in read (data.py:88)",
        "ranks 0-2, 4-7 wait in wait (train.py:71)",
    ]
    assert "    read      data.py:88" in list(details(found.groups()[0]))
    assert [one["group"] for one in to_json(found)["ranks"]] == [0] + [1] * 7  # type: ignore[index, union-attr]


def test_ranks_that_run_and_wait_at_one_place_are_one_group_and_a_stopped_one_is_not():
    found = checked(answer(process("0", *WAITS, state="R"), process("1", *WAITS), process("2", *WAITS, state="T")))
    assert [stacks.named(group) for group in found.groups()] == ["rank 2", "ranks 0-1"]


def test_a_node_that_does_not_answer_or_can_t_look_is_named_with_the_reason():
    found = checked(answer(tool="what reads the stacks was ended"))
    assert set(found.silent) == {"worker1", "worker2"}
    assert found.silent["worker1"] == "what reads the stacks was ended"
    assert "no answer" in found.silent["worker2"]


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["0", "1", "2", "4"], "ranks 0-2, 4"),
        (["10", "9"], "ranks 9-10"),
        (["server 0", "1"], "rank 1, server 0"),
        (["9" * 5000, "x"], f"{'9' * 5000}, x"),
        ([], "none"),
    ],
)
def test_ranks_are_named_in_spans(names, shown):
    assert stacks.named(names) == shown
    assert sorted(names, key=stacks.by_number) is not None


def hostile() -> list[dict[str, Any]]:
    good = answer(process("0", *READS))
    bad = []
    for path, value in (
        (("node",), 7),
        (("tool",), "x" * 401),
        (("processes",), {}),
        (("processes", 0, "rank"), None),
        (("processes", 0, "pid"), -1),
        (("processes", 0, "pid"), True),
        (("processes", 0, "state"), "SS"),
        (("processes", 0, "cpu_s"), float("inf")),
        (("processes", 0, "cpu_s"), "1"),
        (("processes", 0, "wchan"), ["x"]),
        (("processes", 0, "threads"), "x"),
        (("processes", 0, "threads"), [{"name": "x"}]),
        (("processes", 0, "threads", 0, "frames"), [["f", "p", 1, True]] * 65),
        (("processes", 0, "threads", 0, "frames", 0), ["f", "p", 1]),
        (("processes", 0, "threads", 0, "frames", 0, 0), "f" * 401),
        (("processes", 0, "threads", 0, "frames", 0, 2), 1 << 63),
        (("processes", 0, "threads", 0, "frames", 0, 3), "yes"),
    ):
        one: Any = copy.deepcopy(good)
        place = one
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value
        bad.append(one)
    return bad


@pytest.mark.parametrize("one", hostile())
def test_an_answer_that_phalanx_never_gives_is_refused(one):
    assert checked(answer(process("0", *READS))).ranks
    with raises_code("invalid-answer"):
        checked(one)


def test_no_answer_and_one_without_a_job_are_refused():
    for lines in ([], [answer(process("0"))]):
        with raises_code("invalid-answer"):
            stacks._checked("job", lines)


def test_a_node_that_answers_twice_does_not_stand_for_another(monkeypatch):
    """Another client asks at the same time."""
    said = [{"asked": ["w1", "w2"], "ended": []}, {"node": "w1", "at": 1}, {"node": "w1", "at": 2}, {"node": "w2"}, {}]
    monkeypatch.setattr(inquiry, "_answers", lambda *_: iter(said))
    assert inquiry._ask("job", 1.0) == [said[0], said[2], said[3]]
