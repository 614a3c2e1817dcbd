"""What a job has nested a thousand directories deep is removed and passed over like everything else."""

from __future__ import annotations

import os
import stat
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from deep_trees import LEVELS_BEYOND_PATHS, deep_tree
from moto import mock_aws
from moto.s3.models import s3_backends

from localcloud.nodes import cgroups, start
from localcloud.nodes.machine import EXPORTS, Site
from localcloud.storage import file_systems
from localcloud.storage import trees as trees_of_nodes
from localcloud.storage.mounted_buckets import Buckets
from phalanx.objects import multipart, trees
from phalanx.objects.download import CopyError
from phalanx.objects.snapshot import Home
from phalanx.runner.environments import environment
from phalanx.runner.starter.placing import place_tree
from phalanx.runner.starter.scratch import Scratch
from phalanx.runner.verbs.listing import list_jobs

ACCOUNT = "123456789012"
JOB = "991231-235959-badbad"
NOBODY = 65_534
BOTH = pytest.mark.parametrize("remove", [trees.remove, lambda top: trees_of_nodes.remove(Path(top))])


@BOTH
def test_directories_of_any_depth_are_removed(tmp_path: Path, remove: Callable[[str], object]):
    with deep_tree(tmp_path / "top", LEVELS_BEYOND_PATHS) as top:
        (top / "d/beside/empty").mkdir(parents=True)
        (top / "d/beside/file").touch()
        remove(str(top))
        assert not top.exists()


@BOTH
def test_no_link_is_followed(tmp_path: Path, remove: Callable[[str], object]):
    (tmp_path / "outside/kept").mkdir(parents=True)
    (tmp_path / "top/sub").mkdir(parents=True)
    for name in ("link", "sub/link"):
        (tmp_path / "top" / name).symlink_to(tmp_path / "outside")
    (tmp_path / "second").symlink_to(tmp_path / "outside")
    for name in ("top", "second", "missing"):
        remove(str(tmp_path / name))
    assert not (tmp_path / "top").exists() and (tmp_path / "second").is_symlink()
    assert (tmp_path / "outside/kept").is_dir()


def as_a_user(place: Path, work: Callable[[], object]) -> None:
    """Do the work in its own process there, as a user to whom modes apply: to root, they do not."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.chdir(place)
            if os.geteuid() == 0:
                os.chown(".", NOBODY, NOBODY)
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


def make_siblings(top: Path) -> None:
    for number in range(20):
        (top / f"beside{number}/sub").mkdir(parents=True)
        (top / f"beside{number}/sub/file").touch()


@BOTH
@pytest.mark.parametrize("mode", [0, 0o100, 0o300, 0o400, 0o500, 0o600])
@pytest.mark.parametrize("where", ["top/shut", "top"])
def test_a_directory_that_its_owner_can_not_use_is_removed(
    tmp_path: Path, remove: Callable[[str], Any], mode: int, where: str
):
    """As a job leaves one that wants to keep its room, or a cache of modules that nobody shall change."""

    def work() -> None:
        make_siblings(Path("top"))
        Path("top/shut/sub").mkdir(parents=True)
        Path("top/shut/sub/file").touch()
        Path(where).chmod(mode)
        assert remove("top")

    as_a_user(tmp_path, work)
    assert not (tmp_path / "top").exists()


@BOTH
@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes directories of other users")
def test_another_user_s_directory_stays_and_the_rest_goes(tmp_path: Path, remove: Callable[[str], object]):
    def work() -> None:
        make_siblings(Path("top"))
        remove("top")

    (tmp_path / "top/shut/sub").mkdir(parents=True)
    (tmp_path / "top/shut").chmod(0o644)
    os.chown(tmp_path / "top", NOBODY, NOBODY)
    as_a_user(tmp_path, work)
    assert [path.name for path in (tmp_path / "top").iterdir()] == ["shut"]
    assert stat.S_IMODE((tmp_path / "top/shut").stat().st_mode) == 0o644


def test_the_walk_of_nodes_passes_over_what_it_could_not_leave(tmp_path: Path):
    def work() -> None:
        make_siblings(Path("top"))
        Path("top/shut/sub").mkdir(parents=True)
        Path("top/shut").chmod(0o600)
        found = [path for path, _, _ in trees_of_nodes.walk(os.open("top", os.O_DIRECTORY))]
        assert len(found) == 41 and "shut" not in found

    as_a_user(tmp_path, work)
    assert stat.S_IMODE((tmp_path / "top/shut").stat().st_mode) == 0o600, "only what is removed is changed"


def test_the_walk_has_all_files_and_enters_no_link(tmp_path: Path):
    with deep_tree(tmp_path / "top") as top:
        (top / "link").symlink_to(tmp_path)
        (top / "a").mkdir()
        (top / "a/x").touch()
        found = {os.path.relpath(path, top): names for path, names in trees.walk(str(top))}
        assert (found["."], found["a"]) == (["link"], ["x"])
        assert sum(names == ["file"] for names in found.values()) == 1
        assert len(found) == 1_202


def test_a_job_without_a_record_hides_no_other_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "250101-000000-0badd0").mkdir()
    (tmp_path / "250101-000000-0badd0/state.json").write_text("{")
    with deep_tree(tmp_path / JOB) as job:
        os.utime(job, (0, 0))
        assert list_jobs(str(tmp_path), "stack") == 0
        assert "250101-000000-0badd0" in capsys.readouterr().out
        assert not job.exists()


def test_a_temporary_directory_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    scratch = Scratch("job")
    with deep_tree(Path(scratch.path)):
        scratch.remove()
        assert not Path(scratch.path).exists()


def test_an_environment_that_is_incomplete_is_no_obstacle(tmp_path: Path):
    with deep_tree(tmp_path / "env") as top:
        assert environment._size(str(top)) == 0
        environment._discard(str(top))
        assert not top.exists()


def test_code_is_placed(tmp_path: Path):
    with deep_tree(tmp_path / "code") as code, deep_tree(tmp_path / "target", 1) as target:
        assert place_tree(str(code), str(target)) == ""
        assert sum(1 for _ in trees.walk(str(target))) == 1_201


def test_a_jobs_directory_is_seen_and_sent(tmp_path: Path):
    home = Home(str(tmp_path / "home"))
    with deep_tree(Path(home.files)):
        left_out = "d/file': would be a key of 2404 bytes; S3 takes 1024"
        assert [name[-len(left_out) :] for name in home.look().left_out] == [left_out]
        with pytest.raises(CopyError, match="has no files"):
            multipart.survey(home.files, "")


def test_a_file_whose_path_is_too_long_is_passed_over(tmp_path: Path):
    home = Home(str(tmp_path / "home"))
    levels = (4_000 - len(home.files)) // 2
    with deep_tree(Path(home.files), levels):
        last = os.open(home.files + "/d" * levels, os.O_DIRECTORY)
        os.close(os.open("x" * 200, os.O_CREAT | os.O_WRONLY, dir_fd=last))
        os.close(last)
        assert environment._size(home.files) == 0
        assert home.look().files == {}
        Path(home.files, "short").touch()
        files, left_out = multipart.survey(home.files, "")
        assert [Path(one.path).name for one in files] == ["short"]
        assert [Path(name).name.partition(":")[0] for name in left_out] == ["file", "x" * 200], "the user learns of it"


def test_a_shared_directory_is_deleted_and_swept(tmp_path: Path):
    with deep_tree(tmp_path / "efs/fs-1"), deep_tree(tmp_path / EXPORTS / "vpc-1"):
        file_systems.sweep(tmp_path)
        assert not (tmp_path / "efs").exists() and not (tmp_path / EXPORTS).exists()


def test_the_state_of_nodes_is_cleared(tmp_path: Path):
    site = Site(tmp_path, "range", (), ())
    with deep_tree(tmp_path / "nodes/i-1"), deep_tree(site.buckets / "bucket"):
        start._clear(site)
        assert not (tmp_path / "nodes").exists() and not site.buckets.exists()


def test_a_group_with_nested_groups_is_removed(tmp_path: Path):
    with deep_tree(tmp_path / "group") as top:
        for _, names in trees.walk(str(top)):
            assert names in ([], ["file"])
        path = top
        while (path / "d").exists():
            path /= "d"
        (path / "file").unlink()  # The kernel's files in a group can't be unlinked, and need not be.
        assert cgroups._remove(top)


def test_a_mounted_bucket_s_other_files_are_sent_on(tmp_path: Path):
    ended = list[Any]()
    context: Any = SimpleNamespace(
        state=tmp_path,
        account=ACCOUNT,
        root_of_nodes=os.getuid(),
        at_stop=ended.append,
        spawn=lambda *_, **__: None,
        keep_buckets=lambda: None,
    )
    with mock_aws():
        backend = s3_backends[ACCOUNT]["aws"]
        backend.create_bucket("my-bucket", "us-east-1")
        buckets = Buckets(context)
        buckets.mount("vpc-1", "my-bucket", "pets/")
        with deep_tree(tmp_path / "s3/vpc-1/my-bucket/pets/deep"):
            (tmp_path / "s3/vpc-1/my-bucket/pets/cat").write_text("meow")
            before = time.monotonic()
            buckets.look()
            assert list(backend.buckets["my-bucket"].keys) == ["pets/cat"], "S3 has no key as long as the other's"
            assert time.monotonic() - before < 30
            ended[0]()
            assert not any((tmp_path / "s3").iterdir())
