"""Control groups of nodes, in a directory in place of the kernel's: what is set, and what is said if nothing can be."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from localcloud.daemon.room import Gauges
from localcloud.nodes import cgroups, limits, volumes
from localcloud.nodes.machine import Machine, Site

GIB = 1 << 30
MACHINE = Machine("i-1", "vpc-1", "10.0.0.0/16", "10.0.1.4", "ip", "t3.medium", 2, 4096, b"", "us-east-1", "a", ())


@pytest.fixture
def own_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With the controllers that are needed, and systemd as the one that decides whose it is."""
    group = tmp_path / "run-1.scope"
    group.mkdir()
    (group / "cgroup.controllers").write_text("cpu memory pids\n")
    monkeypatch.setattr(cgroups, "_own_group", lambda: group)
    monkeypatch.setattr(cgroups, "_SYSTEMD", tmp_path)
    monkeypatch.setattr(cgroups, "_is_delegated", lambda _group: False)
    return group


def a_group(path: Path, controllers: str) -> Path:
    path.mkdir()
    (path / "cgroup.controllers").write_text(f"{controllers}\n")
    return path


def test_a_node_has_its_types_memory_and_what_its_disk_may_hold(tmp_path, monkeypatch):
    monkeypatch.setattr(volumes, "size_bytes", {tmp_path / "nodes/i-1/disk": GIB}.get)
    site = Site(tmp_path, "range", (), (), cgroup=a_group(tmp_path / "localcloud-1", "memory pids"))
    cgroups.make(site, MACHINE)
    cgroups.limit_memory(site, MACHINE)
    group = tmp_path / "localcloud-1/i-1"
    limits = {name: (group / name).read_text() for name in ("memory.max", "memory.swap.max", "pids.max")}
    assert limits == {"memory.max": str(5 * GIB), "memory.swap.max": "0", "pids.max": "32768"}
    assert not list((group / "node").iterdir())


def test_nothing_happens_where_nodes_are_not_limited(tmp_path):
    site = Site(tmp_path, "range", (), ())
    cgroups.make(site, MACHINE)
    cgroups.limit_memory(site, MACHINE)
    cgroups.enter(site, MACHINE)
    cgroups.remove(site, MACHINE.instance_id)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("uid", "command"), [(1000, "systemd-run --user --scope -p"), (0, "systemd-run --scope -p")])
def test_a_machine_that_can_limit_them_says_by_which_command(own_group, monkeypatch, uid, command):
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    with pytest.raises(cgroups.NotDelegated, match=f"\n{command} Delegate=yes localcloud serve$"):
        cgroups.take()
    assert [path.name for path in own_group.iterdir()] == ["cgroup.controllers"]


def test_a_machine_without_the_controllers_has_groups_without_limits(own_group, monkeypatch):
    monkeypatch.setattr(cgroups, "_is_delegated", lambda _group: True)
    (own_group / "cgroup.controllers").write_text("hugetlb\n")
    (own_group / "localcloud-outside").mkdir()
    (own_group / "cgroup.procs").touch()
    made = cgroups.take()
    assert not cgroups.can_limit(made) and not list(made.iterdir())


def test_all_nodes_together_leave_a_part_of_what_the_container_around_them_may_have(own_group, tmp_path, monkeypatch):
    monkeypatch.setattr(cgroups, "_is_delegated", lambda _group: True)
    for name, text in {"cgroup.procs": "", "memory.max": f"{8 * GIB}", "pids.max": "1000"}.items():
        (own_group / name).write_text(text)
    (own_group / "localcloud-outside").mkdir()
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text(f"0::/{own_group.name}\n")
    (tmp_path / "meminfo").write_text(f"MemTotal: {24 << 20} kB\nMemAvailable: {20 << 20} kB\n")
    monkeypatch.setattr(limits, "Gauges", lambda: Gauges(tmp_path, tmp_path))
    made = cgroups.take()
    assert (int((made / "memory.max").read_text()), (made / "pids.max").read_text()) == (7 * GIB, "500")


def test_without_controllers_only_a_nodes_systemd_gets_a_group(tmp_path):
    site = Site(tmp_path, "range", (), (), cgroup=a_group(tmp_path / "localcloud-1", "hugetlb"), root=os.getuid())
    cgroups.make(site, MACHINE)
    assert not (tmp_path / "localcloud-1/i-1").exists()
    left = tmp_path / "localcloud-1/i-1/node/system.slice"
    left.mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match=r"cgroup.procs"):  # which only the kernel creates
        cgroups.make(site, replace(MACHINE, image="debian-12"))
    assert not left.exists()
    assert (tmp_path / "localcloud-1/i-1/cgroup.max.descendants").read_text() == "4000"


def test_a_machine_without_systemd_says_which_command_makes_a_group(own_group, monkeypatch):
    monkeypatch.setattr(cgroups, "_SYSTEMD", own_group / "none")
    monkeypatch.setattr(cgroups, "user_name", lambda: "ann")
    group = f"{own_group}/localcloud-ann"
    with pytest.raises(cgroups.NotDelegated) as refused:
        cgroups.take()
    command = str(refused.value).splitlines()[-1]
    assert command.startswith(f"sudo sh -c 'mkdir -p {group} && chown ann {group} {group}/cgroup.procs ")
    assert command.endswith(f"echo $0 >{group}/cgroup.procs' $$")


def test_the_groups_of_a_local_cloud_that_was_killed_are_removed(own_group, monkeypatch):
    """By the next one, which an earlier one may have moved out of the way."""
    (own_group / "localcloud-outside").mkdir()
    (own_group / "localcloud-outside/cgroup.controllers").write_text("memory pids\n")
    (own_group / "localcloud-999999999/i-1/node").mkdir(parents=True)
    (own_group / f"localcloud-{os.getppid()}/i-1/node").mkdir(parents=True)
    monkeypatch.setattr(cgroups, "_own_group", lambda: own_group / "localcloud-outside")
    monkeypatch.setattr(cgroups, "_is_delegated", lambda group: group == own_group)
    made = cgroups.take()
    assert made.parent == own_group
    assert {group.name for group in own_group.glob("localcloud-*")} == {
        "localcloud-outside", made.name, f"localcloud-{os.getppid()}",
    }  # fmt: skip
