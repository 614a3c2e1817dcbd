"""Images by recipe and version: found by their tags, with the log and the manifest of their builds."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from error_codes import raises_code

from phalanx.errors import CloudError
from phalanx.images import making, manifest, shelf
from phalanx.images.making import BuildLine, BuildLog

MANIFEST = json.dumps({"recipe": "torch", "python": "3.12.3", "packages": {"torch": "2.13.0"}, "system": {}})


def tags(recipe: str, version: str, **more: str) -> list[dict[str, str]]:
    values = {"phalanx:recipe": recipe, "phalanx:version": version, "phalanx:base": "ubuntu-24.04", **more}
    return [{"Key": key, "Value": value} for key, value in values.items()]


class Account:
    """Answers as AWS does: stacks, AMIs, and the log of a build, if there is one."""

    region = "eu-west-1"

    def __init__(self, stacks: list[dict] | None = None, amis: list[dict] | None = None, log: list[str] | None = None):
        self.stacks, self.amis, self.log = stacks or [], amis or [], log
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.kept: dict[str, dict[str, Any]] = {}
        self.site = self

    def call(self, service: str, operation: str, **arguments: Any) -> dict[str, Any]:
        self.calls.append((operation, arguments))
        return {"Images": self.amis}

    def exists(self, service: str, operation: str, **arguments: Any) -> dict[str, Any] | None:
        return None if self.log is None else self.call(service, operation, **arguments)

    def kept_contents(self, image_id: str) -> dict[str, Any]:
        return self.kept.get(image_id, {})

    def pages(self, service: str, operation: str, key: str, **arguments: Any) -> Any:
        if key == "Stacks":
            return iter(self.stacks)
        since = arguments.get("startTime", 0)
        lines = enumerate(self.log or [])
        return iter([{"eventId": str(at), "timestamp": at, "message": text} for at, text in lines if at >= since])


def stack(recipe: str, version: str, status: str) -> dict[str, Any]:
    return {"StackStatus": status, "Tags": tags(recipe, version)}


def ami(recipe: str, version: str, **more: str) -> dict[str, Any]:
    return {"ImageId": f"ami-{version}", "Architecture": "x86_64", "Tags": tags(recipe, version, **more)}


def test_images_are_listed_by_recipe_the_newest_first():
    others = [{"StackStatus": "CREATE_COMPLETE", "Tags": []}]
    stacks = [stack("torch", "2026.1122.905", "CREATE_IN_PROGRESS"), stack("mxnet", "2026.2.3", "CREATE_COMPLETE")]
    there = shelf.shelved(Account(others + stacks, [ami("torch", "2026.930.1200"), ami("mxnet", "2026.2.3")]))
    assert [one.name for one in there] == ["mxnet@2026.2.3", "torch@2026.1122.905", "torch@2026.930.1200"]
    assert [(one.in_progress, one.available) for one in there] == [(False, True), (True, False), (False, True)]


def test_a_recipe_alone_names_its_newest_image():
    account = Account([], [ami("torch", "2026.930.1200"), ami("torch", "2026.1001.7")])
    assert shelf.find(account, "torch").version == "2026.1001.7"
    assert shelf.find(account, "torch@2026.930.1200").image_id == "ami-2026.930.1200"


def test_an_image_that_is_not_there_is_reported_with_those_that_are():
    with raises_code("no-image", "mxnet", "eu-west-1") as refused:
        shelf.find(Account([], [ami("torch", "2026.1001.7")]), "mxnet")
    assert refused.value.hint == "There are: torch@2026.1001.7."
    with pytest.raises(CloudError) as refused:
        shelf.find(Account(), "mxnet")
    assert "`phalanx image build mxnet`" in refused.value.hint


def test_a_build_log_announces_each_part_once():
    account = Account(log=["== packages: g++", "Reading package lists", "Stdout: == check"])
    log = BuildLog(account, "/aws/imagebuilder/x")
    assert list(log.news()) == [BuildLine("packages: g++"), BuildLine("check")]
    account.log = [*(account.log or []), "== manifest", *manifest.lines(MANIFEST)]
    assert list(log.news()) == [BuildLine("manifest")]
    assert not any(manifest.MARK in line for line in log.tail)


def test_a_log_that_is_not_there_yet_has_no_news():
    assert list(BuildLog(Account(), "/aws/imagebuilder/x").news()) == []


def test_the_manifest_is_read_from_the_log_once_and_its_hash_becomes_a_tag(tmp_path, monkeypatch):
    monkeypatch.setenv("PHALANX_STATE_DIR", str(tmp_path))
    account = Account([], [ami("torch", "2026.1001.7")], log=manifest.lines(MANIFEST))
    image = shelf.find(account, "torch")
    assert making.read_manifest(account, image)["packages"] == {"torch": "2.13.0"}
    (tagged,) = [arguments for operation, arguments in account.calls if operation == "create_tags"]
    digest = hashlib.sha256(MANIFEST.encode()).hexdigest()
    assert tagged == {"Resources": [image.image_id], "Tags": [{"Key": "phalanx:manifest", "Value": digest}]}
    assert making.read_manifest(Account(), image)["python"] == "3.12.3"


def test_a_manifest_that_was_changed_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("PHALANX_STATE_DIR", str(tmp_path))
    account = Account([], [ami("torch", "2026.1.2", **{"phalanx:manifest": "0" * 64})], manifest.lines(MANIFEST))
    with pytest.raises(CloudError, match="has been changed"):
        making.read_manifest(account, shelf.find(account, "torch"))


def test_the_manifest_of_an_image_whose_files_are_at_hand_needs_no_log(tmp_path, monkeypatch):
    """That of an image of this machine, in a later local cloud."""
    monkeypatch.setenv("PHALANX_STATE_DIR", str(tmp_path))
    account = Account([], [ami("torch", "2026.1001.7")])
    account.kept = {"ami-2026.1001.7": json.loads(MANIFEST)}
    assert making.read_manifest(account, shelf.find(account, "torch"))["python"] == "3.12.3"


def test_an_image_without_a_log_says_where_its_manifest_is(tmp_path, monkeypatch):
    monkeypatch.setenv("PHALANX_STATE_DIR", str(tmp_path))
    account = Account([], [ami("torch", "2026.1001.7")])
    with pytest.raises(CloudError, match="not in its log") as refused:
        making.read_manifest(account, shelf.find(account, "torch"))
    assert "/usr/local/lib/phalanx/manifest.json" in refused.value.hint


def test_a_version_is_the_minute_in_utc():
    assert making.new_version(1_795_338_300.0) == "2026.1122.905"
