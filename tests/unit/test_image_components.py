"""A recipe as documents of Image Builder: what is installed on which base, and what fits into a component."""

from __future__ import annotations

import base64
import gzip
import io
import json
import re
import tarfile
import tracemalloc
from pathlib import Path

import pytest
import yaml
from error_codes import raises_code

from phalanx.errors import JobError
from phalanx.images import manifest
from phalanx.images.base import base, bases
from phalanx.images.component import components
from phalanx.jobs.environments import recipe, recipe_names

VERSION = "2026.1122.905"
# Of a component's document.
MOST_CHARACTERS = 16_000
DOCS = Path(__file__).parents[2] / "docs"
# The one in C is ten times as fast, where PyYAML has it.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def made(name: str, alias: str = ""):
    one = recipe(name)
    return components(one, base(alias or one.image["base"]), VERSION)


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_has_components_that_image_builder_accepts(name):
    found = made(name)
    assert [one.phase for one in found] == ["build"] * (len(found) - 1) + ["test"]
    for one in found:
        text = one.document
        document = yaml.load(text, Loader=LOADER)
        (phase,) = document["phases"]
        (step,) = phase["steps"]
        assert (document["schemaVersion"], phase["name"], step["action"]) == (1.0, one.phase, "ExecuteBash")
        assert step["inputs"]["commands"] == [one.script]
        assert len(text) <= MOST_CHARACTERS
        # Image Builder would replace it.
        assert "{{" not in text


@pytest.mark.parametrize("name", ["torch", "tensorflow"])
def test_the_sources_are_the_files_of_the_recipe(name):
    parts = [re.findall(r"<<'END'\n(.*)\nEND", one.script, re.S)[0] for one in made(name) if "source" in one.name]
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode("".join(parts)))) as packed:
        files = {entry.name: packed.extractfile(entry).read().decode() for entry in packed}  # type: ignore[union-attr]
    assert files.pop("manifest.py").startswith('"""')
    assert files == recipe(name).environment.files


def test_a_recipe_has_the_same_documents_each_time():
    assert made("mxnet") == made("mxnet")


def test_a_recipe_is_installed_as_a_job_would_install_it():
    script = made("chainermn")[-2].script
    flags = "--require-hashes --no-deps --no-build-isolation"
    assert f"own_pip install {flags} -r before.txt\n    own_pip install {flags} -r requirements.txt" in script
    assert "DS_BUILD_OPS=0" in made("deepspeed")[-2].script
    assert "DS_ACCELERATOR=cpu" in made("deepspeed")[-1].script


@pytest.mark.parametrize(
    ("name", "alias", "wanted", "unwanted"),
    [
        ("torch", "ubuntu-24.04", {"openmpi-bin", "nfs-common", "python3-venv"}, {"g++"}),
        ("chainermn", "ubuntu-22.04", {"g++", "python3-dev"}, set()),
        ("cupy", "dlami-base", {"nfs-common"}, {"openmpi-bin"}),
        ("openmpi", "amazon-linux-2023", {"python3-pip", "nfs-utils"}, {"openmpi-bin", "gcc-c++"}),
        ("chainermn", "amazon-linux-2023", {"python3.11-pip", "python3.11-devel", "gcc-c++"}, {"python3-pip"}),
    ],
)
def test_the_packages_are_those_of_the_distribution(name, alias, wanted, unwanted):
    packages = set(base(alias).packages(recipe(name)))
    assert wanted <= packages
    assert not unwanted & packages


@pytest.mark.parametrize(
    ("name", "alias", "python"),
    [
        ("torch", "ubuntu-24.04", "3.12"),
        ("torch", "amazon-linux-2023", "3.13"),
        ("openmpi", "amazon-linux-2023", "3.9"),
    ],
)
def test_the_image_has_the_python_that_the_distribution_prefers(name, alias, python):
    assert base(alias).python_for(recipe(name)) == python


def test_a_recipe_that_no_python_of_the_base_can_make_is_refused_with_the_bases_that_can():
    with raises_code("no-python", "chainercv", ">=3.10,<3.11", "ubuntu-24.04", "3.12") as refused:
        made("chainercv", "ubuntu-24.04")
    assert "ubuntu-22.04" in refused.value.hint
    assert "amazon-linux-2023" not in refused.value.hint


def test_a_base_for_another_processor_than_the_machines_is_refused():
    assert base("ubuntu-24.04").architecture_for("c7g.large") == "arm64"
    assert base("dlami-pytorch").architecture_for("unheard.of") == "x86_64"
    with raises_code("other-architecture", "dlami-pytorch", "x86_64", "c7g.large", "arm64"):
        base("dlami-pytorch").architecture_for("c7g.large")


def test_an_unknown_base_is_refused():
    with pytest.raises(JobError, match=r"no base image 'ubuntu-23.04'"):
        base("ubuntu-23.04")


def test_every_recipe_suits_its_own_base():
    for name in recipe_names():
        one = recipe(name)
        assert dict(bases())[one.image["base"]].python_for(one)


def test_a_manifest_lists_every_version_and_survives_a_log(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("libc6:amd64 2.39-0ubuntu8\nbash 5.2.21\n"))
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    manifest.main(str(tmp_path), json.dumps({"recipe": "torch", "digest": "d"}))
    written = (tmp_path / "manifest.json").read_text()
    assert json.loads(written)["system"] == {"bash": "5.2.21", "libc6:amd64": "2.39-0ubuntu8"}
    assert "PyYAML" in json.loads(written)["packages"]
    assert json.loads((tmp_path / ".complete").read_text())["digest"] == "d"
    log = ["something else", *(f"Stdout: {line}" for line in reversed(capsys.readouterr().out.splitlines()))]
    assert manifest.found_in(log) == written


def test_a_log_without_the_whole_manifest_has_none():
    first, *_ = manifest.lines("x" * 10 + json.dumps([str(number) for number in range(500)]))
    assert manifest.found_in([first]) == ""


def hostile(content: bytes) -> list[str]:
    return [f"{manifest.MARK} 1/1 {base64.b64encode(content).decode()}"]


@pytest.mark.parametrize(
    "log",
    [
        hostile(gzip.compress(bytes(1 << 20)) * 1000),
        hostile(b"no gzip"),
        hostile(gzip.compress(b"{}")[:-4]),
        hostile(gzip.compress(b"\xff\xfe")),
        [f"{manifest.MARK} 1/1 ="],
        [f"{manifest.MARK} {'9' * 5000}/1 AAAA"],
        [f"{manifest.MARK} 1/{'9' * 5000} AAAA"],
    ],
    ids=["bomb", "other", "cut", "bytes", "odd", "number", "of"],
)
def test_a_log_that_anybody_wrote_has_no_manifest_and_takes_little_memory(log):
    """The machine that builds writes it, and so may whoever else may write to the log group."""
    tracemalloc.start()
    try:
        assert manifest.found_in(log) == ""
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", [one for one in recipe_names() if not recipe(one).image["cuda"]])
def test_the_manifest_of_each_recipe_is_published_and_has_the_versions_of_its_lock(name):
    """`make images` writes them."""
    assert f"[{name}](manifests/{name}.txt)" in (DOCS / "images.md").read_text()
    first, _, *lines = (DOCS / "manifests" / f"{name}.txt").read_text().splitlines()
    assert re.match(rf"{name} 20\d\d\.\d+\.\d+ on \S+, x86_64, Python ", first)
    pins = unconditional_pins(name)
    assert pins and {package: versions(lines)[package] for package in pins} == pins


@pytest.mark.parametrize("name", [one for one in recipe_names() if recipe(one).image["cuda"]])
def test_a_manifest_of_a_recipe_for_gpus_has_the_versions_that_pip_may_install_and_says_that_nobody_did(name):
    """`scripts/lock --check` compares all of them with the lock."""
    assert f"[{name}](manifests/{name}.txt)" in (DOCS / "images.md").read_text()
    first, _, *lines = (DOCS / "manifests" / f"{name}.txt").read_text().splitlines()
    assert first == f"{name} for dlami-base, x86_64, Python 3.12: resolved, not installed"
    # The image has Amazon's Open MPI.
    pins = unconditional_pins(name) | {"openmpi": ""}
    assert pins and {package: versions(lines).get(package, "") for package in pins} == pins


def versions(lines: list[str]) -> dict[str, str]:
    """Return the versions in a manifest, without the local part of those of an index's own builds."""
    pairs = [line.split() for line in lines if line.count(" ") == 1]
    return {re.sub("[-_.]+", "-", name.lower()): version.partition("+")[0] for name, version in pairs}


def unconditional_pins(name: str) -> dict[str, str]:
    texts = [text for file, text in recipe(name).environment.files.items() if "constraints" not in file]
    return dict(re.findall(r"^([A-Za-z0-9-]+)==([^ ;\n]+)(?: \\)?$", "\n".join(texts), re.MULTILINE))
