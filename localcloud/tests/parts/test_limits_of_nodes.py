"""The limits of nodes' control groups, in a kernel with cgroup v2 that runs as a process: user-mode Linux."""

from __future__ import annotations

from typing import Any

import limited_nodes
import pytest
import user_mode_linux


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return user_mode_linux.boot(limited_nodes.__file__, tmp_path_factory.mktemp("uml"))


def test_a_node_takes_its_types_memory_and_its_disk_and_no_more(seen):
    """The kernel ends the process that wants more, and counts it where the node shows it."""
    most_mib = limited_nodes.MEMORY_MIB + limited_nodes.DISK_MIB
    assert most_mib - 8 <= seen["taken_mib"] <= most_mib
    assert seen["was_killed"]
    assert "oom_kill 1" in seen["events"].splitlines()


def test_a_node_has_eight_processes_for_each_mib_and_the_next_is_refused(seen):
    assert seen["processes"] == ["EAGAIN", str(8 * limited_nodes.CROWD_MIB)]


def test_a_node_that_reaches_its_limits_ends_no_process_of_another(seen):
    assert seen["neighbour_lives"]


def test_root_on_a_node_can_not_change_the_limits(seen):
    assert seen["lifted_by_root"] == {"memory.max": "EROFS", "pids.max": "EROFS"}


def test_nothing_is_left_of_the_groups(seen):
    assert seen["left"] == []
