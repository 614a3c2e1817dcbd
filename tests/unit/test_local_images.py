"""phalanx local image: systems and recipes, found by name; what can't be made is refused before anything starts."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from error_codes import raises_code
from prompts import Prompt

from localcloud.images import command, store
from localcloud.images.store import Image
from phalanx.cli import image_making
from phalanx.cli import images as commands
from phalanx.errors import LocalCloudError
from phalanx.images import making, place, shelf
from phalanx.images.base import local_bases
from phalanx.images.shelf import Shelved
from phalanx.jobs.environments import recipe
from phalanx.local import endpoint, images

STATUS = """Package: bash
Status: install ok installed
Version: 5.2.15-2

Package: gone
Status: deinstall ok config-files
Version: 1
"""
MANIFEST = {"recipe": "mpich", "python": "3.11.2", "packages": {"mpi4py": "4.1.2"}, "system": {"bash": "5.2.15-2"}}


def tags(recipe: str, version: str) -> dict[str, str]:
    return {"phalanx:recipe": recipe, "phalanx:version": version, "phalanx:base": "debian-12-full"}


def keep(folder: str, manifest: dict[str, Any] | None = None, **fields: Any) -> Path:
    """Put an image into the user's directory of images."""
    place = images.directory() / folder
    for name in ("tree/var/lib/dpkg", "tree/usr/local/lib/phalanx"):
        (place / name).mkdir(parents=True)
    (place / "tree/var/lib/dpkg/status").write_text(STATUS)
    if manifest:
        (place / "tree/usr/local/lib/phalanx/manifest.json").write_text(json.dumps(manifest))
    record = Image(folder, str(place), "2026-11-23", 1 << 20, 1, 0, **fields)
    (place / "image.json").write_text(json.dumps(vars(record)))
    return place


@pytest.fixture
def phalanx(tmp_path, monkeypatch, capsys):
    """A prompt, with the images' command in this process."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))

    def run(*arguments: str) -> Any:
        failed = command.main(["--images", str(images.directory()), *arguments])
        answer = json.loads(capsys.readouterr().out)
        if failed:
            raise LocalCloudError(*answer["message"].split("\n"), code="image-failed")
        return answer

    monkeypatch.setattr(images, "run", run)
    return Prompt(tmp_path, monkeypatch, capsys)


@pytest.fixture
def kept(phalanx):
    keep("debian-12")
    keep("phalanx-image-mpich-2026-1122-905-1.0.0", MANIFEST, ami="ami-1", tags=tags("mpich", "2026.1122.905"))
    keep("phalanx-image-mpich-2026-1101-1-1.0.0", MANIFEST, ami="ami-2", tags=tags("mpich", "2026.1101.1"))


def test_systems_and_recipes_are_listed_with_what_a_file_says_for_them(phalanx, kept):
    assert phalanx("local", "image", "ls", "--json") == 0
    found = [(one["name"], one["base"], one["use"]) for one in json.loads(phalanx.out)]
    assert found == [
        ("debian-12", "", "debian-12-full"),
        ("mpich@2026.1122.905", "debian-12", "recipe:mpich@2026.1122.905"),
        ("mpich@2026.1101.1", "debian-12", "recipe:mpich@2026.1101.1"),
    ]
    assert phalanx("local", "image", "ls") == 0
    assert "mpich@2026.1122.905" in phalanx.out and "IMAGE:" in phalanx.out


def test_show_prints_a_recipes_manifest_and_a_systems_packages(phalanx, kept):
    assert phalanx("local", "image", "show", "mpich", "--json") == 0
    assert json.loads(phalanx.out) == MANIFEST
    assert phalanx("local", "image", "show", "mpich") == 0
    assert "mpich@2026.1122.905 is in" in phalanx.out and "made on debian-12, with Python 3.11.2" in phalanx.out
    assert phalanx("local", "image", "show", "debian-12", "--json") == 0
    assert json.loads(phalanx.out) == {"system": {"bash": "5.2.15-2"}}


def test_an_image_that_is_not_there_is_refused_with_those_that_are(phalanx, kept):
    assert phalanx("local", "image", "show", "torch") == 2
    phalanx.refused("no-image", "image torch", "debian-12, mpich@2026.1122.905, mpich@2026.1101.1.")


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        (("fedora-40",), "there is no system or recipe 'fedora-40'\nSystems: ubuntu-24.04, "),
        (("fedora-40",), "Recipes: chainercv, chainermn, "),
        (("cupy",), "cupy needs GPUs, which nodes of the local cloud lack"),
        (("cupy",), "phalanx image build cupy --cloud aws"),
        (("mpich", "--base", "fedora-40"), "the local cloud has no fedora-40\nName another base with --base: ubuntu"),
        (("chainercv", "--base", "debian-12"), "chainercv needs Python >=3.10,<3.11, and debian-12-full has 3.11"),
        (("debian-12", "--base", "debian-12"), "--base is for recipes, and debian-12 is a system"),
    ],
)
def test_what_cant_be_built_is_refused_before_anything_starts(phalanx, monkeypatch, arguments, printed):
    monkeypatch.setattr(commands.image_making, "connect", lambda *_: pytest.fail("it started"))
    assert phalanx("local", "image", "build", *arguments) != 0
    assert printed in phalanx.err


def test_a_recipe_that_no_python_of_a_local_image_can_make_is_refused():
    old = recipe("mpich")
    ancient = replace(old, environment=replace(old.environment, python=">=3.6,<3.7"))
    with raises_code("no-python", "mpich", ">=3.6,<3.7") as refused:
        local_bases(ancient)
    assert "debian-11 has 3.9" in refused.value.hint


@pytest.mark.parametrize(
    ("there", "options", "base", "built"),
    [
        ((), (), "ubuntu-22.04-full", ["ubuntu-22.04"]),
        (("debian-12",), (), "debian-12-full", []),
        (("debian-11", "debian-12", "ubuntu-22.04"), (), "ubuntu-22.04-full", []),
        (("debian-11",), (), "ubuntu-22.04-full", ["ubuntu-22.04"]),
        (("debian-12",), ("--base", "ubuntu-22.04"), "ubuntu-22.04-full", ["ubuntu-22.04"]),
        ((), ("--base", "debian-12-full"), "debian-12-full", ["debian-12"]),
    ],
)
def test_a_recipe_is_built_on_a_system_that_is_there_or_else_on_its_own(
    phalanx, monkeypatch, there, options, base, built
):
    for name in there:
        keep(name)
    ran, ordered = [], []

    def begin(_connected: object, order: Any, *, command: str, **_options: Any) -> int:
        ordered.append(order.base.alias)
        assert command == " ".join(("phalanx local image build chainermn", *options)), "it follows this build"
        return 0

    answer = images.run
    monkeypatch.setattr(images, "run", lambda *words: ran.append(words[-1]) if words[0] == "build" else answer(*words))
    monkeypatch.setattr(commands.image_making, "connect", lambda *_: None)
    monkeypatch.setattr(commands.image_making, "make", begin)
    assert phalanx("local", "image", "build", "chainermn", *options) == 0
    assert (ordered, ran) == ([base], built)


def test_a_system_is_removed(phalanx, monkeypatch):
    monkeypatch.setattr(images, "run", lambda *arguments: {"name": arguments[-1], "removed": True})
    assert phalanx("local", "image", "rm", "debian-12", "--json") == 0
    assert json.loads(phalanx.out) == {"name": "debian-12", "removed": True}
    assert phalanx("local", "image", "rm", "debian-12") == 0
    assert phalanx.out == "debian-12 is removed.\n"


def test_names_are_completed(phalanx, kept):
    def complete(which: Any, incomplete: str) -> list[str]:
        return which(None, None, incomplete)

    assert complete(commands._complete_buildable, "m") == ["mpich", "mxnet"]
    assert complete(commands._complete_buildable, "debian") == ["debian-12", "debian-11"]
    assert complete(commands._complete_built, "mpich") == ["mpich@2026.1122.905", "mpich@2026.1101.1"]


def test_what_a_killed_build_has_left_is_removed_unless_another_one_still_runs(tmp_path):
    for name in ("killed", "running"):
        (tmp_path / f"{name}.partial/tree").mkdir(parents=True)
    with store.locked(tmp_path, "running") as is_mine:
        assert is_mine
        store.remove_abandoned(tmp_path, shutil.rmtree)
    assert [path.name for path in tmp_path.glob("*.partial")] == ["running.partial"]


def test_a_full_disk_is_reported_with_what_is_free(tmp_path):
    assert "is full: " in store.full_disk("tar: ./usr: Cannot write: No space left on device\n", tmp_path)
    assert store.full_disk("tar: ./usr: Permission denied\n", tmp_path) == ""


@pytest.mark.parametrize(("image", "name"), [("debian-12", "debian-12"), ("mpich", "mpich@2026.1122.905")])
def test_an_image_that_local_nodes_run_from_is_kept(phalanx, kept, monkeypatch, image, name):
    """In whatever region they are."""
    folders = {"debian-12": "debian-12", "mpich": "phalanx-image-mpich-2026-1122-905-1.0.0"}
    node = {"image": folders[image], "image_id": "ami-1", "stack": "training"}
    others = [{"image": "", "image_id": "ami-9", "stack": "other"}, {"image": "debian-12", "image_id": "", "stack": ""}]
    nodes = [{**one, "instance_id": f"i-{n}"} for n, one in enumerate((node, node, {**node, "stack": ""}, *others))]
    monkeypatch.setattr(endpoint, "find", lambda: "it runs")
    monkeypatch.setattr(endpoint, "status", lambda: {"nodes": nodes})
    found = Shelved("mpich", "2026.1122.905", "debian-12-full", "", "s", image_id="ami-1")
    monkeypatch.setattr(shelf, "find", lambda *_: found)
    monkeypatch.setattr(image_making, "connect", lambda *_: Idle())
    assert phalanx("local", "image", "rm", image) == 5
    phalanx.refused("image-in-use", name, "i-0, i-1 of training", "i-2", "`phalanx down`")
    assert (images.directory() / "debian-12/image.json").exists()


def mounts(tree: Path) -> str:
    """What an instance's mounts look like from outside."""
    disk = "/state/local/nodes/i-0abc/disk"
    return (
        "25 1 0:3 / /proc rw - proc proc rw\n"
        f"31 1 0:44 / / rw,relatime - overlay overlay rw,lowerdir=/layer:{tree},upperdir={disk}/upper,workdir=/\n"
    )


def test_a_system_is_not_removed_or_replaced_below_nodes_of_any_local_cloud(phalanx, kept, tmp_path, monkeypatch):
    for pid, tree in (("1", tmp_path / "elsewhere"), ("2", images.directory() / "debian-12/tree")):
        (tmp_path / "proc" / pid).mkdir(parents=True)
        (tmp_path / "proc" / pid / "mountinfo").write_text(mounts(tree))
    monkeypatch.setattr(store, "PROC", tmp_path / "proc")
    monkeypatch.setattr(endpoint, "find", lambda: None)
    for verb in ("rm", "build"):
        assert phalanx("local", "image", verb, "debian-12") == 4
        phalanx.refused("image-failed", "debian-12", "i-0abc", "/state/local")
    assert (images.directory() / "debian-12/image.json").exists()


class Idle:
    """A cloud that has nothing else to do."""

    name = "local"

    def __init__(self) -> None:
        self.site = self

    def stop_if_idle(self) -> None:
        pass

    def require_full_system(self, image: str) -> None:
        if image == "debian-11-full":
            raise LocalCloudError(f"image: {image} runs systemd, and no cgroup is delegated", code="no-cgroup")


class Following:
    """A build that is followed: until Ctrl-C, or to its end."""

    def __init__(self, interrupted: bool) -> None:
        self._interrupted = interrupted

    def steps(self) -> Any:
        if self._interrupted:
            raise KeyboardInterrupt
        return iter([making.BuildLine("passed")])


def test_a_machine_that_cant_run_systemd_is_refused_before_anything_starts(phalanx, monkeypatch):
    keep("debian-11")
    monkeypatch.setattr(image_making, "connect", lambda *_: Idle())
    monkeypatch.setattr(shelf, "shelved", lambda _api: [])
    assert phalanx("local", "image", "build", "mpich", "--base", "debian-11") == 5
    phalanx.refused("no-cgroup", "runs systemd")


def test_an_interrupted_build_goes_on_and_the_same_command_follows_it(phalanx, monkeypatch):
    keep("debian-12")
    begun, joined = [], []
    known = Shelved("mpich", "2026.1122.905", "debian-12-full", recipe("mpich").environment.digest, "s")
    going, ready = replace(known, status="CREATE_IN_PROGRESS"), replace(known, image_id="ami-1")
    monkeypatch.setattr(image_making, "connect", lambda *_: Idle())
    monkeypatch.setattr(place, "find", lambda *_: place.OWN_NETWORK)
    monkeypatch.setattr(making.Making, "begin", lambda _cloud, order: begun.append(order) or Following(True))
    monkeypatch.setattr(making.Making, "join", lambda _cloud, image: joined.append(image) or Following(False))
    monkeypatch.setattr(making, "read_manifest", lambda *_: {"packages": {}, "system": {}, "python": "3.11.2"})
    monkeypatch.setattr(shelf, "find", lambda *_: ready)
    monkeypatch.setattr(shelf, "shelved", lambda _api: [])
    build = ("local", "image", "build", "mpich", "--base", "debian-12")
    assert phalanx(*build) == 130
    assert "the build continues. `phalanx local image build mpich --base debian-12` follows it again." in phalanx.err
    monkeypatch.setattr(shelf, "shelved", lambda _api: [going])
    assert phalanx(*build) == 0
    assert (len(begun), joined) == (1, [going])
    monkeypatch.setattr(shelf, "shelved", lambda _api: [ready])
    assert phalanx(*build) == 0
    assert (len(begun), len(joined)) == (1, 1), "it is there"
    assert "mpich@2026.1122.905 is ami-1" in phalanx.out
