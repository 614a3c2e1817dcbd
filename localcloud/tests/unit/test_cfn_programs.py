"""What cfn-init and cfn-hup decide, without a node: which configs run, what a template renders, when a hook acts."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from localcloud.nodes.bootstrap import build, files, hup, mustache
from localcloud.nodes.bootstrap.downloads import Downloads
from localcloud.nodes.bootstrap.failures import FailedError
from localcloud.nodes.bootstrap.stacks import region_of

NOWHERE = Downloads({}, "http://127.0.0.1:9")


def metadata(**init: Any) -> dict[str, Any]:
    return {build.INIT: init}


def names(found: list[build.Config]) -> list[str]:
    return [name for name, _config in found]


def test_without_config_sets_there_is_one_config():
    assert build.configs(metadata(config={"files": {}}), ["default"]) == [("config", {"files": {}})]
    with pytest.raises(FailedError, match="no ConfigSet named other exists"):
        build.configs(metadata(config={}), ["other"])


def test_config_sets_run_in_the_order_of_the_request_and_contain_each_other():
    sets = {"default": ["a", {"ConfigSet": "late"}], "late": "b", "both": [{"ConfigSet": "late"}, "a"]}
    given = metadata(configSets=sets, a={"commands": {}}, b={})
    assert names(build.configs(given, ["default"])) == ["a", "b"]
    assert names(build.configs(given, ["late", "both"])) == ["b", "b", "a"]


@pytest.mark.parametrize(
    ("sets", "reason"),
    [
        ({"default": ["missing"]}, "no configuration found with name: missing"),
        ({"default": [{"ConfigSet": "missing"}]}, "no ConfigSet named missing exists"),
        ({"default": [{"ConfigSet": "default"}]}, "circular dependency of configSets: default → default"),
        ({"default": [{"Config": "a"}]}, "is neither a config nor a ConfigSet"),
        (["a"], "configSets should be a mapping of name to list"),
    ],
)
def test_config_sets_that_are_wrong_are_refused(sets, reason):
    with pytest.raises(FailedError, match=reason):
        build.configs(metadata(configSets=sets, a={}), ["default"])


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{name}} {{{name}}} {{& name}}", "a &amp; b a & b a & b"),
        ("{{#items}}<{{name}}{{size}}>{{/items}}{{^items}}none{{/items}}", "<a &amp; b1><a &amp; b2>"),
        ("{{#empty}}some{{/empty}}{{^empty}}none{{/empty}}{{! hidden }}", "none"),
        ("{{deep.er}}{{unknown}}{{#deep}}{{er}}{{/deep}}", "xx"),
        ("{{#names}}{{.}},{{/names}} $(a) {b}", "ada,alan, $(a) {b}"),
    ],
)
def test_files_with_a_context_are_mustache_templates(template, text):
    context = {"name": "a & b", "items": [{"size": 1}, {"size": 2}], "empty": [], "deep": {"er": "x"}}
    assert mustache.render(template, {**context, "names": ["ada", "alan"]}) == text


def test_a_file_keeps_what_was_there_beside_it_and_its_mode(tmp_path):
    path = tmp_path / "new/settings"
    assert files.apply({str(path): {"content": "one", "mode": "000640"}}, NOWHERE) == [str(path)]
    assert files.apply({str(path): {"content": "one"}}, NOWHERE) == []
    assert files.apply({str(path): {"content": {"a": 1}}}, NOWHERE) == [str(path)]
    assert (path.read_text(), Path(f"{path}.bak").read_text()) == ('{"a": 1}', "one")
    assert path.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"mode": "000600"}, "without source or content"),
        ({"content": "%", "encoding": "base64"}, "malformed base64"),
        ({"content": "a", "owner": "nobody-has-this-name"}, "no such user"),
    ],
)
def test_a_file_that_can_not_be_written_fails_the_config(tmp_path, given, reason):
    with pytest.raises(FailedError, match=reason):
        files.apply({str(tmp_path / "file"): given}, NOWHERE)


def archive(kind: str, name: str) -> bytes:
    held = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(held, "w") as packed:
            packed.writestr(name, "text")
    else:
        with tarfile.open(fileobj=held, mode="w:gz") as packed:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = 4, 0o755
            packed.addfile(entry, io.BytesIO(b"text"))
    return held.getvalue()


@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_a_source_is_unpacked_into_its_directory_and_nowhere_else(tmp_path, kind):
    packed, target = tmp_path / f"packed.{kind}", tmp_path / "target"
    packed.write_bytes(archive(kind, "bin/program"))
    assert files.unpack_sources({str(target): str(packed)}, NOWHERE) == [str(target)]
    assert (target / "bin/program").read_text() == "text"
    packed.write_bytes(archive(kind, "../outside"))
    with pytest.raises(FailedError, match="is not a sub-path"):
        files.unpack_sources({str(target): str(packed)}, NOWHERE)
    assert not (tmp_path / "outside").exists()


def hooks(directory: Path, path: str, triggers: str = "post.update") -> list[hup.Hook]:
    (directory / "cfn-hup.conf").write_text("[main]\nstack=mine\nregion=eu-west-1\ninterval=5\n")
    (directory / "hooks.conf").write_text(f"[mine]\ntriggers={triggers}\npath={path}\naction=true\n")
    return hup.read(directory).hooks


def test_a_hook_watches_metadata_an_id_or_any_change(tmp_path):
    found = {"Metadata": {"a": {"b": [1]}}, "PhysicalResourceId": "i-1", "LastUpdatedTimestamp": "now"}
    expected = {
        "Resources.Machine.Metadata.a.b": [1],
        "Resources.Machine.PhysicalResourceId": "i-1",
        "Resources.Machine": "now",
        "Resources.Machine.Metadata.c": None,
    }
    for path, value in expected.items():
        (hook,) = hooks(tmp_path, path)
        assert (hook.resource, hup.value_of(hook, found)) == ("Machine", value)
    with pytest.raises(FailedError, match="Unsupported path"):
        hooks(tmp_path, "Outputs.Machine")


@pytest.mark.parametrize(
    ("trigger", "before", "now", "acts"),
    [
        ("post.add", None, "a", True),
        ("post.add", "a", "b", False),
        ("post.update", None, "a", False),
        ("post.update", "a", "b", True),
        ("post.update", "a", "a", False),
        ("post.remove", "a", None, True),
        ("post.add, post.remove", "a", None, True),
    ],
)
def test_a_hook_acts_on_what_it_names(tmp_path, trigger, before, now, acts):
    (hook,) = hooks(tmp_path, "Resources.Machine.Metadata", trigger)
    assert hup.is_triggered(hook, before, now) is acts


def test_the_region_of_a_service_s_address():
    assert region_of("https://cloudformation.eu-west-1.amazonaws.com") == "eu-west-1"
    assert region_of("http://169.254.1.1:443") == ""
