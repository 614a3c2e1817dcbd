"""The table of an attempt's processes: which live where, and which represents a node."""

from __future__ import annotations

import pytest

from phalanx.runner.head.process_table import End, Member, ProcessTable
from phalanx.runner.starter import memory

MPIEXEC = Member("mpiexec", "n1", is_rank=False, is_main=True)
SERVER = Member("0", "n1", is_rank=True, is_main=True, role="server", is_service=True)
WORKER = Member("0", "n2", is_rank=True, is_main=True, role="worker")


def table(*members: Member) -> ProcessTable:
    found = ProcessTable()
    for number, member in enumerate(members):
        found.add(number, member)
    return found


def rank(label: str, node: str = "n2") -> Member:
    return Member(label, node, is_rank=True)


def test_a_starter_has_numbers_of_its_own_for_ranks():
    found = table(MPIEXEC)
    found.add(1, rank("0", "n1"), on_node=1 << 20)
    found.add(2, rank("1", "n2"), on_node=1 << 20)
    assert found.number("n1", 0) == 0
    assert [found.number(node, 1 << 20) for node in ("n1", "n2")] == [1, 2]
    assert found[2].label == "1"


def test_a_starter_that_came_again_counts_from_its_beginning():
    found = table(rank("0"))
    found.add(1, rank("0"), on_node=0)
    assert found.number("n2", 0) == 1


def test_what_runs_is_what_was_started_by_itself():
    found = table(MPIEXEC, rank("0"), Member("mpiexec@n2", "n2", is_rank=False))
    assert found.running == 1
    assert found.ended(0) == MPIEXEC
    assert found.running == 0
    assert found.live_on("n2") == [1, 2]


def test_services_alone_work_for_nobody():
    found = table(SERVER, WORKER)
    assert not found.only_services
    found.ended(1)
    assert (found.only_services, found.running) == (True, 1)


def test_ranks_live_until_the_last_has_ended_and_end_once():
    found = table(MPIEXEC, rank("0"), rank("1"))
    for number in (1, 1):
        found.ended(number)
    assert found.has_ranks
    found.ended(2)
    assert not found.has_ranks


def test_a_process_ages_from_its_own_start():
    moments = iter([10.0, 12.0, 15.0, 15.0])
    found = ProcessTable(lambda: next(moments))
    for number in (0, 1):
        found.add(number, rank(str(number)))
    assert [found.age_s(number) for number in (0, 1)] == [5.0, 3.0]


@pytest.mark.parametrize(("node", "number"), [("n1", None), ("n2", 1), ("n3", None)])
def test_a_node_is_represented_by_its_first_living_rank(node, number):
    found = table(MPIEXEC, rank("7"), rank("3"), rank("1"))
    found.ended(3)
    assert found.witness(node) == number


@pytest.mark.parametrize(
    ("member", "code", "text"),
    [
        (rank("3"), 2, "rank 3 on n2 ended with exit code 2"),
        (SERVER, -9, "server 0 on n1 was ended by SIGKILL"),
        (Member("mpiexec@n2", "n2", is_rank=False), 1, "mpiexec@n2 ended with exit code 1"),
    ],
)
def test_an_end_is_reported_with_its_place(member, code, text):
    assert member.ended_as(code) == text


@pytest.mark.parametrize(
    ("code", "oom_kills", "cause"),
    [
        (-9, None, "(perhaps out of memory: the kernel's count of kills can't be read there)"),
        (-9, 0, "(not by the kernel for lack of memory)"),
        (-9, 1, "(out of memory: the kernel there has killed 1 process since the job began)"),
        (-9, 3, "(out of memory: the kernel there has killed 3 processes since the job began)"),
        (-15, None, ""),
        (1, None, ""),
    ],
)
def test_of_a_sigkill_is_said_whether_the_kernel_did_it_for_memory(code, oom_kills, cause):
    assert End(code, 0.0, False, oom_kills).cause.strip() == cause


@pytest.mark.parametrize(
    ("cgroup", "events", "machine", "kills"),
    [
        ("0::/user.slice/a.scope\n", "oom 9\noom_kill 2\n", "oom_kill 7\n", 2),
        ("4:memory:/x\n0::/\n", None, "pgfault 1\noom_kill 7\n", 7),
        (None, None, "oom_kill many\n", None),
        (None, None, None, None),
    ],
)
def test_the_kernels_count_is_the_cgroups_or_else_the_machines(monkeypatch, tmp_path, cgroup, events, machine, kills):
    (tmp_path / "user.slice/a.scope").mkdir(parents=True)
    files = {"cgroup": cgroup, "vmstat": machine, "user.slice/a.scope/memory.events": events}
    for name, text in files.items():
        if text is not None:
            (tmp_path / name).write_text(text)
    monkeypatch.setattr(memory, "_CGROUP", str(tmp_path / "cgroup"))
    monkeypatch.setattr(memory, "_EVENTS", str(tmp_path) + "{}/memory.events")
    monkeypatch.setattr(memory, "_MACHINE", str(tmp_path / "vmstat"))
    assert memory.oom_kills() == kills


@pytest.mark.parametrize(("code", "how"), [(-9, "by SIGKILL"), (-37, "by signal 37"), (3, "with exit code 3")])
def test_an_end_is_put_in_words_whatever_signal_it_was(code: int, how: str):
    assert rank("0").ended_as(code).endswith(f"ended {how}")
