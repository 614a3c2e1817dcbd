"""What a newer phalanx wrote is refused with what to do, and stays as it is. Without a sound number it is damaged."""

from __future__ import annotations

import json
import zlib
from typing import ClassVar

import pytest
from plans import plan
from rosters import ROSTER

from phalanx.node import __main__ as program
from phalanx.node import validate
from phalanx.node.settings import Settings
from phalanx.node.validate import Invalid, Newer
from phalanx.template import fleet

NEWER = "was made by a newer phalanx (format 2; this one reads 1): pip install -U phalanx\n"
# The exit codes of NewerFormat, and of what is damaged today.
REFUSED, CLOUD, DAMAGED = 8, 3, 1
NO_NUMBERS = [None, "1", 1.0, True, [], 0, -1, 10**12]


def changed(text: str, number: object) -> str:
    """Return the JSON object with another format and a field that nobody knows yet; without a number for ..."""
    content = {**json.loads(text), "format": number, "colour": "blue"}
    if number is ...:
        del content["format"]
    return json.dumps(content)


class TestRecord:
    """The record of a cluster on this machine."""

    @pytest.fixture
    def record(self, phalanx, cloud, tmp_path):
        assert phalanx("up", "--yes") == 0
        return tmp_path / "state/clusters/demo/cluster.json"

    @pytest.mark.parametrize(
        "command",
        ["up --yes", "down --yes", "plan", "status --json", "scale 2", "jobs", "adopt demo"],
    )
    def test_a_newer_one_is_refused_and_kept(self, phalanx, cloud, record, command):
        record.write_text(text := changed(record.read_text(), 2))
        stacks = {name: stack.state for name, stack in cloud.stacks.items()}
        assert phalanx(*command.split()) == REFUSED
        assert f"error: cluster demo {NEWER}" in phalanx.err
        assert record.read_text() == text
        assert {name: stack.state for name, stack in cloud.stacks.items()} == stacks

    @pytest.mark.parametrize("status", [None, "ROLLBACK_COMPLETE"])
    def test_up_replaces_no_newer_one_of_a_cluster_that_is_gone_or_failed(self, phalanx, cloud, record, status):
        record.write_text(text := changed(record.read_text(), 2))
        cloud.stacks.clear()
        if status:
            cloud.put("demo", status)
        assert phalanx("up", "--yes") == REFUSED
        assert record.read_text() == text and len(cloud.stacks) == bool(status)

    def test_a_newer_one_is_a_line_of_ls(self, phalanx, record):
        record.write_text(changed(record.read_text(), 2))
        assert phalanx("ls", "--json") == 0
        (row,) = json.loads(phalanx.out)
        assert row["state"] == f"unknown: cluster demo {NEWER.rstrip()}"

    @pytest.mark.parametrize("number", [..., *NO_NUMBERS], ids=repr)
    def test_one_without_a_sound_number_is_damaged(self, phalanx, record, number):
        record.write_text(changed(record.read_text(), number))
        assert phalanx("status") == DAMAGED
        assert "cluster.json is damaged: " in phalanx.err


class TestRoster:
    """The roster in the cluster's table."""

    @pytest.fixture
    def table(self, phalanx, cloud, monkeypatch):
        """What the table contains from now on, by item."""
        assert phalanx("up", "--yes") == 0
        items = {"roster": {"roster": cloud.roster.to_json()}}
        read = cloud.get_item

        def get_item(Key, **more):
            found = items.get(Key["item"]["S"])
            return {"Item": {name: {"S": text} for name, text in found.items()}} if found else read(Key=Key, **more)

        monkeypatch.setattr(cloud, "get_item", get_item)
        return items

    @pytest.mark.parametrize("command", [["status", "--json"], ["scale", "2"]], ids=lambda command: command[0])
    def test_a_newer_one_is_refused(self, phalanx, cloud, table, command):
        table["roster"] = {"roster": changed(ROSTER.to_json(), 2)}
        assert phalanx(*command) == REFUSED
        phalanx.refused("newer-format", f"the cluster's roster {NEWER}")

    def test_a_cluster_with_a_newer_one_is_not_adopted(self, phalanx, cloud, table, tmp_path):
        table["roster"] = {"roster": changed(ROSTER.to_json(), 2)}
        record = tmp_path / "state/clusters/demo/cluster.json"
        text = record.read_text()
        (stack,) = cloud.stacks.values()
        given = {"InstanceType": "c5.large", "SharedDirectory": "/efs", "MinNodes": "1"}
        stack.state.parameters.update(given)
        assert phalanx("adopt", "demo", "--cloud", "local") == REFUSED
        assert record.read_text() == text

    def test_one_without_a_sound_number_is_invalid(self, phalanx, table):
        table["roster"] = {"roster": changed(ROSTER.to_json(), "2")}
        assert phalanx("status") == CLOUD
        phalanx.refused("forged", "format: ")

    @pytest.mark.parametrize("pack", [str, str.encode], ids=["text", "packed"])
    def test_the_validator_names_the_number(self, pack):
        text = changed(ROSTER.to_json(), 7)
        with pytest.raises(Newer, match=r"the cluster's roster .*\(format 7; this one reads 1\)"):
            validate.roster(text if pack is str else zlib.compress(text.encode()))

    def test_a_newer_one_needs_no_field_that_is_known_today(self):
        with pytest.raises(Newer, match="the cluster's roster was made by a newer phalanx"):
            validate.roster('{"format": 2, "members": [], "cluster": {}}')

    @pytest.mark.parametrize("number", [..., *NO_NUMBERS], ids=repr)
    def test_the_validator_takes_no_other_number_for_a_newer_one(self, number):
        with pytest.raises(Invalid, match="format") as refused:
            validate.roster(changed(ROSTER.to_json(), number))
        assert not isinstance(refused.value, Newer)


class TestSettings:
    """The agent's settings, from user data."""

    GIVEN: ClassVar = {
        **dict.fromkeys((*Settings._fields, "workers"), "7"),
        "format": "1",
        "wait_handle": "http://127.0.0.1/",
    }

    def test_the_document_has_the_number_that_the_agent_reads(self):
        assert fleet.config("head", plan())["format"] == self.GIVEN["format"]

    @pytest.fixture
    def boot(self, monkeypatch, tmp_path):
        """Boot a node with these settings; return what it reports."""

        def run(given: dict[str, str]) -> str:
            (tmp_path / "opt/phalanx").mkdir(parents=True)
            (tmp_path / "opt/phalanx/config.json").write_text(json.dumps(given))
            monkeypatch.setenv("PHALANX_ROOT", str(tmp_path))
            sent = []
            monkeypatch.setattr(program.wire, "insist", lambda attempt, *_: attempt())
            monkeypatch.setattr(program.wire, "fetch", lambda request, _: sent.append(json.loads(request.body)))
            monkeypatch.setattr(program, "_run", lambda *_: pytest.fail("it boots"))
            assert program.main(["boot"]) == 1
            return sent[0]["Reason"]

        return run

    def test_newer_ones_fail_the_boot_with_what_to_do(self, boot):
        reason = boot({**self.GIVEN, "format": "2"})
        assert reason == f"boot step 'agent' failed: the configuration of this node {NEWER.rstrip()}"

    @pytest.mark.parametrize("number", [None, "", "one", "0"])
    def test_without_a_sound_number_they_fail_the_boot(self, boot, number):
        given = {**self.GIVEN, "format": number}
        if number is None:
            del given["format"]
        assert "newer" not in boot(given)
