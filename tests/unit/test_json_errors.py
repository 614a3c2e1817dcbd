"""A command with --json that fails prints its error as JSON, too; people still read it on standard error."""

from __future__ import annotations

import json
import os
import sys

import pytest

from phalanx import cli
from phalanx.errors import CloudError


def error(phalanx):
    """Return the error that the last command printed."""
    (found,) = json.loads(phalanx.out).values()
    return found


def test_an_error_has_its_code_its_message_and_its_hint(phalanx, cloud):
    cloud.refuse_create = CloudError("these credentials may not", "Request a policy.", code="not-authorized")
    assert phalanx("up", "--json") == 3
    one = {"code": "not-authorized", "message": "these credentials may not", "hint": "Request a policy."}
    assert error(phalanx) == {**one, "problems": [one]}
    assert "error: these credentials may not\nRequest a policy." in phalanx.err


def test_every_mistake_of_a_file_is_a_problem_of_its_own(phalanx, tmp_path):
    (tmp_path / "phalanx.yaml").write_text("nodse: 2\nname: demo\nnodes: many\n")
    assert phalanx("plan", "--offline", "--json") == 2
    found = error(phalanx)
    assert found["code"] == "several-mistakes"
    assert [one["code"] for one in found["problems"]] == ["unknown-key", "wrong-type"]
    assert "phalanx.yaml:1: nodse: " in found["problems"][0]["message"] and "nodes" in found["problems"][0]["hint"]
    assert found["message"] == phalanx.err.removeprefix("error: ").rstrip("\n")


def test_mistakes_of_one_kind_share_their_code(phalanx, tmp_path):
    (tmp_path / "phalanx.yaml").write_text("name: demo\nnodes: 2\nfirst: 1\nsecond: 2\n")
    assert phalanx("plan", "--offline", "--json") == 2
    assert (error(phalanx)["code"], len(error(phalanx)["problems"])) == ("unknown-key", 2)


def test_a_file_with_mistakes_without_end_gets_an_answer_with_one(phalanx, tmp_path):
    (tmp_path / "phalanx.yaml").write_text(f"? {'k' * 100_000}\n: 1\n" + "".join(f"k{i}:\n" for i in range(1_000)))
    assert phalanx("plan", "--offline", "--json") == 2
    assert len(phalanx.err) < 20_000 and "983 more" in phalanx.err
    assert len(phalanx.out) < 100_000 and len(error(phalanx)["problems"]) == 100


@pytest.mark.parametrize("arguments", [("nodes", "--json", "--nonsense"), ("plan", "--json", "extra")])
def test_a_mistake_in_the_command_line_is_json_too(phalanx, arguments):
    assert phalanx(*arguments) == 2
    assert error(phalanx)["code"] == "usage"


def test_a_program_s_own_json_option_is_no_wish_for_json(phalanx):
    assert phalanx("run", "--nonsense", "--", "train", "--json") == 2
    assert phalanx.out == ""


def test_without_the_option_nothing_is_on_standard_output(phalanx):
    assert phalanx("status") == 2
    assert phalanx.out == ""
    phalanx.refused("no-cluster")


@pytest.mark.parametrize("flags", [[], ["--debug"]])
def test_an_error_that_nobody_expected_is_json_too(phalanx, monkeypatch, flags):
    def fail():
        raise RuntimeError("surprise")

    monkeypatch.setattr("phalanx.cli.ls.known", fail)
    assert phalanx(*flags, "ls", "--json") == 1
    assert (error(phalanx)["code"], error(phalanx)["message"]) == ("unexpected", "RuntimeError: surprise")


def test_an_error_of_the_system_is_json_too(phalanx, cloud, tmp_path):
    (tmp_path / "state").write_text("a file")
    assert phalanx("up", "--json") == 1
    assert error(phalanx)["code"] == "os-error"


def test_a_reader_that_has_gone_leaves_the_text_for_people(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("PHALANX_STATE_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as gone, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", gone)
        assert cli.execute(["status", "--json"]) == 2
    assert "error: " in capfd.readouterr().err
