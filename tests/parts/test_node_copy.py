"""A node's own copy of an environment: unpacked once, replaced when it is made again, a link where it does not fit."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from phalanx.runner.environments import node_copy


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(node_copy, "HOME", str(tmp_path / "node"))
    (tmp_path / "node").mkdir()
    return tmp_path / "node"


def keep(tmp_path: Path, name: str, made_at: float = 1.0, size: int = 1000) -> Path:
    """Make an environment and its archive on the shared directory."""
    kept = tmp_path / "shared" / name
    (kept / "bin").mkdir(parents=True, exist_ok=True)
    (kept / "bin/python").write_text(str(made_at))
    (kept / "bin/tool").write_text(f"#!{kept}/bin/python\nimport tool\n")
    (kept / "bin/more").mkdir(exist_ok=True)  # as Intel MPI's bin/libfabric
    (kept / "bin/more/tool").unlink(missing_ok=True)
    (kept / "bin/more/tool").write_text(f"#!{kept}/bin/python\n")
    (kept / "bin/more/tool").chmod(0o500)
    (kept / "bin/program").write_bytes(b"\x7fELF\0 " + os.fsencode(kept))
    subprocess.run(["tar", "-czf", node_copy.archive_of(str(kept)), "-C", kept, "bin"], check=True)
    (kept / ".complete").write_text(json.dumps({"bytes": size, "made_at": made_at}))
    return kept


def test_it_is_unpacked_once(home, tmp_path):
    kept = keep(tmp_path, "a-1")
    assert not node_copy.is_here(str(kept))
    node_copy.bring(str(kept))
    assert node_copy.is_here(str(kept))
    assert (home / "a-1").resolve() == home / "copies/a-1"
    assert (home / "a-1/bin/tool").read_text() == f"#!{home}/a-1/bin/python\nimport tool\n"
    assert (home / "a-1/bin/more/tool").read_text() == f"#!{home}/a-1/bin/python\n"
    assert (home / "a-1/bin/program").read_bytes() == (kept / "bin/program").read_bytes()
    (home / "copies/a-1/mine").touch()
    node_copy.bring(str(kept))
    assert (home / "copies/a-1/mine").exists()


def test_one_that_was_made_again_is_unpacked_again(home, tmp_path):
    kept = str(keep(tmp_path, "a-1"))
    node_copy.bring(kept)
    (home / "copies/a-1/planted").touch()
    keep(tmp_path, "a-1", made_at=2.0)
    assert not node_copy.is_here(kept)
    node_copy.bring(kept)
    assert (home / "a-1/bin/python").read_text() == "2.0" and not (home / "a-1/planted").exists()


def test_where_there_is_no_room_both_paths_lead_to_the_shared_directory(home, tmp_path):
    """Open MPI's mpiexec starts its daemons on all nodes by the path that its own resolves to on the first."""
    disk = os.statvfs(home)
    kept = keep(tmp_path, "a-1", size=disk.f_bavail * disk.f_frsize // 3)
    node_copy.bring(str(kept))
    assert node_copy.is_here(str(kept)) and (home / "a-1").resolve() == kept
    assert (home / "copies/a-1/bin/python").exists()
    node_copy.remove(str(kept))
    assert [*(home / "copies").iterdir()] == [] and (kept / "bin/python").exists()


def test_an_archive_that_cant_be_unpacked_leaves_nothing_behind(home, tmp_path):
    kept = keep(tmp_path, "a-1")
    Path(node_copy.archive_of(str(kept))).write_bytes(b"\x1f\x8b, and then the disk was full")
    node_copy.bring(str(kept))
    assert (home / "a-1").resolve() == kept and (home / "copies/a-1").is_symlink()


def test_copies_of_what_was_pruned_go_with_the_next_one(home, tmp_path):
    old, new = keep(tmp_path, "a-1"), keep(tmp_path, "b-2")
    node_copy.bring(str(old))
    (old / ".complete").unlink()
    node_copy.bring(str(new))
    assert [path.name for path in (home / "copies").iterdir()] == ["b-2"] and not (home / "a-1").is_symlink()


def test_a_machine_without_the_directory_uses_it_where_it_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(node_copy, "HOME", str(tmp_path / "none"))
    kept = str(keep(tmp_path, "a-1"))
    assert (node_copy.path_of(kept), node_copy.is_here(kept)) == (kept, True)
