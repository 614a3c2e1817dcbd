"""How many nodes this machine has room for, with the kernel's settings as files."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from localcloud.daemon.room import Gauges, Nodes, limits, shortages

NOBODY = Nodes()
ENOUGH = {
    "kernel/pid_max": 4194304,
    "kernel/threads-max": 1000000,
    "kernel/pty/max": 4096,
    "fs/inotify/max_user_instances": 128,
    "user/max_user_namespaces": 96365,
    "user/max_net_namespaces": 96365,
}


@pytest.fixture(autouse=True)
def own_limits(monkeypatch):
    own = {resource.RLIMIT_NPROC: 400_000, resource.RLIMIT_NOFILE: 1_048_576}
    monkeypatch.setattr(resource, "getrlimit", lambda which: (own[which], own[which]))
    return own


@pytest.fixture
def gauges(tmp_path) -> Iterator[Callable[..., Gauges]]:
    """Open gauges that show these settings, which are named with __ for a slash."""

    def opened(total_mib: int = 24_000, available_mib: int = 23_000, **settings: int) -> Gauges:
        given = {name.replace("__", "/"): value for name, value in settings.items()}
        for name, value in {**ENOUGH, **given}.items():
            file = tmp_path / "sys" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{value}\n")
        (tmp_path / "meminfo").write_text(f"MemTotal: {total_mib << 10} kB\nMemAvailable: {available_mib << 10} kB\n")
        return until_the_end.enter_context(closing(Gauges(tmp_path, tmp_path / "cgroup")))

    with ExitStack() as until_the_end:
        yield opened


def short(found: Gauges, wanted: int, there: Nodes = NOBODY, is_full: bool = False) -> list[tuple[int, str, str]]:
    return [(one.nodes, one.what, one.fix) for one in shortages(limits(found, there, is_full), wanted)]


def test_a_thousand_nodes_fit_into_a_large_machine(gauges):
    assert short(gauges(), 1000) == []


def test_half_of_all_processes_are_for_nodes_and_the_command_doubles_what_they_need(gauges):
    said = "kernel.pid_max is 32768, of which nodes may use half: 1200 in use, and 1300 nodes take 15600"
    found = gauges(total_mib=90_000, available_mib=90_000, kernel__pid_max=32768)
    shortage = (1265, said, "sudo sysctl -w kernel.pid_max=65536")
    assert shortage in short(found, 1300, Nodes(plain=100))


def test_the_account_s_own_limit_of_processes_counts(gauges, own_limits):
    own_limits[resource.RLIMIT_NPROC] = 1000
    ((nodes, what, fix),) = short(gauges(), 64)
    assert (nodes, what.partition(",")[0]) == (41, "`ulimit -u` (processes) is 1000")
    assert fix == "sudo prlimit --pid $$ --nproc=2048:2048"


def test_memory_is_what_other_programs_leave_and_starting_nodes_will_take(gauges):
    found = gauges(total_mib=8000, available_mib=3000)
    assert short(found, 150) == []
    said = "this machine has 8000 MiB of memory: 5200 in use, and 150 nodes take 3000"
    assert short(found, 150, Nodes(plain=10, starting=10)) == [(140, said, "Choose fewer nodes.")]


@pytest.fixture
def container(tmp_path) -> Path:
    """The control group of a container in which this process has a group of its own, without limits."""
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text("4:memory:/old\n0::/box/own\n")
    box = tmp_path / "cgroup/box"
    (box / "own").mkdir(parents=True)
    for name in ("memory.max", "pids.max"):
        (box / "own" / name).write_text("max\n")
    return box


def test_the_memory_of_a_container_counts_without_its_cache_of_files(gauges, container):
    (container / "memory.max").write_text(f"{1000 << 20}\n")
    (container / "memory.current").write_text(f"{900 << 20}\n")
    (container / "memory.stat").write_text(f"anon 5\nactive_file {200 << 20}\ninactive_file {300 << 20}\n")
    assert short(gauges(), 30) == []
    said = "this process's control group may have 1000 MiB of memory: 400 in use, and 64 nodes take 1280"
    assert short(gauges(), 64) == [(30, said, "Choose fewer nodes, or raise the container's or the scope's limit.")]


def test_the_processes_of_a_container_count(gauges, container):
    (container / "pids.max").write_text("1000\n")
    ((nodes, what, _),) = short(gauges(), 64)
    assert (nodes, what.partition(",")[0]) == (41, "pids.max of this process's control group is 1000")


@pytest.fixture
def older_container(tmp_path) -> Path:
    """The mounts of cgroup version 1 in a container, which sees its own group as the highest, and its host's path."""
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text("8:pids:/box/1\n4:cpu,memory:/box/1\n1:name=systemd:/box/1\n0::/\n")
    for controller in ("pids", "memory"):
        (tmp_path / "cgroup" / controller).mkdir(parents=True)
    return tmp_path / "cgroup"


def test_the_memory_of_a_container_of_version_1_counts_with_that_of_the_groups_in_it(gauges, older_container):
    files = {
        "limit_in_bytes": 1000 << 20,
        "usage_in_bytes": 900 << 20,
        "stat": f"active_file 0\ninactive_file 7\ntotal_active_file {200 << 20}\ntotal_inactive_file {300 << 20}",
    }
    for name, value in files.items():
        (older_container / f"memory/memory.{name}").write_text(f"{value}\n")
    said = "this process's control group may have 1000 MiB of memory: 400 in use, and 64 nodes take 1280"
    assert short(gauges(), 64) == [(30, said, "Choose fewer nodes, or raise the container's or the scope's limit.")]
    assert gauges().most_memory_mib() == 1000


def test_the_processes_of_a_container_of_version_1_count(gauges, older_container):
    (older_container / "pids/pids.max").write_text("1000\n")
    ((nodes, what, _),) = short(gauges(), 64)
    assert (nodes, what.partition(",")[0]) == (41, "pids.max of this process's control group is 1000")


def test_a_group_of_version_1_without_a_limit_has_the_largest_number(gauges, older_container):
    (older_container / "memory/memory.limit_in_bytes").write_text("9223372036854771712\n")
    (older_container / "pids/pids.max").write_text("max\n")
    assert short(gauges(), 64) == []
    assert gauges().most_memory_mib() == 24_000


def test_a_vpc_s_bridge_has_1023_ports_which_nothing_raises(gauges):
    said = "a VPC's nodes share a bridge of Linux, with 1023 ports: 1023 in use, and one more node takes 1"
    assert short(gauges(), 1, Nodes(plain=1023, in_vpc=1023)) == [(0, said, "Choose fewer nodes.")]
    assert short(gauges(), 1, Nodes(plain=1023)) == []


def test_open_files_are_those_of_the_process_that_keeps_all_nodes(gauges, own_limits):
    own_limits[resource.RLIMIT_NOFILE] = 1024
    ((nodes, what, fix),) = short(gauges(), 512)
    assert (nodes, what) == (320, "`ulimit -Hn` (open files) is 1024: 64 in use, and 512 nodes take 1536")
    assert fix == "sudo prlimit --pid $$ --nofile=2048:2048"


def test_each_node_has_namespaces(gauges):
    ((nodes, what, fix),) = short(gauges(user__max_net_namespaces=100), 128)
    assert (nodes, what) == (92, "user.max_net_namespaces is 100: 8 in use, and 128 nodes take 128")
    assert fix == "sudo sysctl -w user.max_net_namespaces=256"


def test_only_a_full_operating_system_watches_files(gauges):
    said = "fs.inotify.max_user_instances is 128: 0 in use, and 20 nodes take 160"
    fix = "sudo sysctl -w fs.inotify.max_user_instances=256"
    assert short(gauges(), 20, is_full=True) == [(16, said, fix)]
    assert short(gauges(), 20) == []


def test_all_that_is_short_is_said_the_scarcest_first(gauges):
    found = gauges(available_mib=200, user__max_net_namespaces=20)
    assert [nodes for nodes, _, _ in short(found, 64)] == [10, 12]


def test_a_kernel_that_does_not_show_a_limit_has_none(tmp_path):
    with closing(Gauges(tmp_path, tmp_path)) as nothing:
        assert short(nothing, 1000) == []


def test_a_limit_that_is_raised_counts_at_once(gauges, tmp_path):
    found = gauges(user__max_net_namespaces=10)
    assert len(short(found, 64)) == 1
    (tmp_path / "sys/user/max_net_namespaces").write_text("1000\n")
    assert short(found, 64) == []
