"""File systems that an earlier local cloud kept, found again when it starts.

Each test starts local clouds of its own, one after the other, so no other one may run in this process.
"""

from __future__ import annotations

import threading

import pytest
from fleet_fakes import until
from moto.efs.models import efs_backends
from stack_fakes import stacks

from localcloud.storage import file_system_records, file_systems, trees


@pytest.mark.parametrize("damage", ["", '{"region": "us-', "[]", '{"region": "us-east-1"}'])
def test_a_damaged_record_of_a_kept_file_system_does_not_stop_the_local_cloud(tmp_path, damage):
    tokens = [f"{tmp_path.name[-40:]}-{number}" for number in range(2)]
    with stacks(tmp_path) as first:
        made = [first.client("efs").create_file_system(CreationToken=token)["FileSystemId"] for token in tokens]
    efs_backends.reset()  # as in a new process
    (tmp_path / "efs" / f"{made[0]}.json").write_text(damage)
    with stacks(tmp_path) as second:
        found = [one["FileSystemId"] for one in second.client("efs").describe_file_systems()["FileSystems"]]
        assert set(made) & set(found) == {made[1]}
        assert made[0] in second.context.warnings[0]
    assert (tmp_path / "efs" / made[0]).is_dir(), "its data is kept"
    regions = {one["id"]: one["region"] for one in file_system_records.kept(tmp_path)}
    assert regions == {made[0]: "", made[1]: "us-east-1"}


def test_a_file_system_has_the_size_that_efs_counts(tmp_path):
    with stacks(tmp_path) as cloud:
        efs = cloud.client("efs")
        made = efs.create_file_system(CreationToken=f"{tmp_path.name[-40:]}-sized")["FileSystemId"]

        def size() -> int:
            (found,) = efs.describe_file_systems(FileSystemId=made)["FileSystems"]
            return found["SizeInBytes"]["Value"]

        root = tmp_path / "efs" / made
        assert size() == 6144, "the root directory only"
        (root / "jobs" / "1").mkdir(parents=True)
        assert size() >= 3 * 6144
        before = size()
        (root / "jobs" / "1" / "data").write_bytes(bytes(5000))
        assert size() - before == 2048 + 8192
        efs.delete_file_system(FileSystemId=made)


def test_a_file_system_is_deleted_at_once_and_its_data_in_the_background(tmp_path, monkeypatch):
    """An environment has 30,000 files."""
    may_go, remove = threading.Event(), trees.remove
    with stacks(tmp_path) as cloud:
        efs = cloud.client("efs")
        made = efs.create_file_system(CreationToken=f"{tmp_path.name[-40:]}-deleted")["FileSystemId"]
        (tmp_path / "efs" / made / "data").write_text("x")
        monkeypatch.setattr(trees, "remove", lambda path: may_go.wait(60) and remove(path))
        efs.delete_file_system(FileSystemId=made)
        assert not (tmp_path / "efs" / made).exists()
        assert [one.read_text() for one in (tmp_path / file_systems.TRASH).glob("*/data")] == ["x"]
        may_go.set()
        until(lambda: not (tmp_path / file_systems.TRASH).exists())


def test_what_a_killed_local_cloud_was_removing_goes_when_it_starts_again(tmp_path):
    (tmp_path / file_systems.TRASH / "half").mkdir(parents=True)
    with stacks(tmp_path):
        assert not (tmp_path / file_systems.TRASH).exists()
