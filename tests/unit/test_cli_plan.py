"""`phalanx init`, `plan` and `template`, with a cloud in memory."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from fake_cloud import roster

from phalanx import connection, template
from phalanx.aws.model import Running
from phalanx.errors import CloudUnreachable, SpecError
from phalanx.template import request


def test_init_refuses_a_name_that_the_next_command_would_refuse(phalanx, tmp_path):
    assert phalanx("init", "-c", "9lives") == 2
    phalanx.refused("bad-value", "--cluster: '9lives'")
    assert not (tmp_path / "phalanx.yaml").exists()


def test_a_plan_and_a_template_for_aws_need_no_credentials_offline(phalanx, tmp_path, monkeypatch):
    monkeypatch.setattr(connection, "connect", lambda name, region: pytest.fail("the cloud was asked"))
    text = "name: demo\ncloud: aws\nregion: eu-west-1\nnodes: 2\nssh_from: 203.0.113.7/32\n"
    (tmp_path / "phalanx.yaml").write_text(text)
    assert phalanx("plan", "--offline", "--json") == 0
    assert json.loads(phalanx.out)["zone"] == "eu-west-1a"
    assert phalanx("template", "--offline") == 0
    assert json.loads(phalanx.out)["Parameters"]["Zone"]["Default"] == "eu-west-1a"
    (tmp_path / "phalanx.yaml").write_text(text + "type: x9.huge\n")
    assert phalanx("plan", "--offline") == 2
    phalanx.refused("unknown-sizes", "phalanx.yaml:6: type: ", "x9.huge")


def test_plan_names_the_recipes_that_the_image_has_no_python_for(phalanx, tmp_path):
    (tmp_path / "phalanx.yaml").write_text("name: d\nnodes: 2\ncloud: aws\nssh_from: 203.0.113.7/32\n")
    assert phalanx("plan", "--offline") == 0
    assert "no Python for these recipes: chainercv (>=3.10,<3.11), chainermn (>=3.10,<3.12), mxnet (" in phalanx.out
    assert "uv brings one from GitHub. ubuntu-22.04 would have one." in phalanx.out
    phalanx("plan", "--offline", "--json")
    assert json.loads(phalanx.out)["unsuited_recipes"]["mxnet"] == ">=3.10,<3.12"


def test_a_plan_with_the_real_client_and_no_credentials(phalanx, monkeypatch):
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI"):
        monkeypatch.delenv(variable, raising=False)
    for variable in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(variable, "/nowhere")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    Path("phalanx.yaml").write_text("name: demo\ncloud: aws\nnodes: 2\nssh_from: 203.0.113.7/32\n")
    assert phalanx("plan") == 0
    assert "AWS was not asked (no AWS credentials were found)" in phalanx.out


@pytest.mark.parametrize("command", ["plan", "template", "up"])
def test_a_type_that_the_cloud_refuses_is_reported_with_its_line(phalanx, cloud, tmp_path, monkeypatch, command):
    def facts(spec, key):
        raise SpecError(f"type: us-east-1 has no instance type '{spec.type}'", "Did you mean c5.large?")

    monkeypatch.setattr(cloud, "facts", facts)
    (tmp_path / "phalanx.yaml").write_text("name: demo\nnodes: 3\ntype: c5.lrge\n")
    assert phalanx(command) == 2
    assert "phalanx.yaml:3: type: us-east-1 has no instance type 'c5.lrge'\nDid you mean c5.large?" in phalanx.err


def test_init_writes_a_spec_that_loads_and_refuses_to_overwrite_it(phalanx, tmp_path):
    assert phalanx("init", "-c", "vision") == 0
    first = (tmp_path / "phalanx.yaml").read_text()
    assert phalanx("init", "-c", "other") == 2
    assert "--force" in phalanx.err
    assert (tmp_path / "phalanx.yaml").read_text() == first
    assert phalanx("plan") == 0
    assert "vision" in phalanx.out


def test_the_template_is_on_screen_and_in_a_file_what_up_sends(phalanx, cloud, tmp_path, monkeypatch):
    monkeypatch.setattr(template, "request", request)
    assert phalanx("up") == 0
    (sent,) = map(json.loads, cloud.sent)
    values = cloud.state("demo").parameters
    for name in sent["Parameters"]:
        if name.startswith("Agent"):
            sent["Parameters"][name]["Default"] = values[name]
    assert phalanx("template") == 0
    assert json.loads(phalanx.out) == sent
    printed = phalanx.out
    assert phalanx("template", "-o", "cluster.json") == 0
    assert (tmp_path / "cluster.json").read_text() == printed


def test_plan_has_json(phalanx, cloud):
    assert phalanx("plan", "--json") == 0
    assert json.loads(phalanx.out)["spec"]["nodes"] == 3


def test_all_mistakes_of_a_spec_are_reported(phalanx, tmp_path):
    (tmp_path / "phalanx.yaml").write_text("name: demo\nnods: 4\nnodes: 0\n")
    assert phalanx("up") == 2
    assert "nods" in phalanx.err
    assert "nodes" in phalanx.err
    assert "Traceback" not in phalanx.err


def test_plan_after_scale_says_what_is_asked_for_now(phalanx, cloud):
    cloud.roster = roster(3)
    phalanx("up")
    cloud.roster = roster(5)
    assert phalanx("plan") == 0
    assert "Cluster demo is up already; `phalanx scale` requested 5 nodes, which `up` keeps." in phalanx.out
    phalanx("plan", "--json")
    assert json.loads(phalanx.out)["requested"] == 5
    phalanx("plan", "--offline", "--json")
    assert json.loads(phalanx.out)["requested"] is None


def test_plan_says_what_up_does_with_a_cluster_of_that_name(phalanx, cloud, tmp_path):
    def shown() -> str:
        assert phalanx("plan") == 0
        return phalanx.out.splitlines()[-1]

    assert "Cluster demo" not in shown()
    cloud.roster = roster(3)
    phalanx("up")
    assert shown() == "Cluster demo is up already as the file describes it; `up` would create nothing."
    cloud.running_now = Running(0, True, None)
    assert shown() == "Cluster demo is there, and its nodes are stopped; `up` starts them."
    (tmp_path / "phalanx.yaml").write_text("name: demo\nnodes: 4\nmin: 1\n")
    told = "Cluster demo is there with other settings (nodes: 3 → 4); `up` shows what would change, and asks."
    assert shown() == told
    (stack,) = cloud.stacks.values()
    stack.state = replace(stack.state, status="UPDATE_ROLLBACK_FAILED")
    assert shown() == "Cluster demo is there as UPDATE_ROLLBACK_FAILED; `phalanx why` names the cause."
    stack.state = replace(stack.state, status="CREATE_IN_PROGRESS")
    assert shown() == "Cluster demo is being created; `up` follows that."


@pytest.mark.parametrize("why", ["no AWS credentials were found", "AWS in eu-west-1 does not answer"])
def test_without_credentials_or_a_connection_the_tables_answer_and_it_is_said(phalanx, cloud, monkeypatch, why):
    def facts(spec, key):
        raise CloudUnreachable(why, "")

    monkeypatch.setattr(cloud, "facts", facts)
    text = "name: demo\ncloud: aws\nregion: eu-west-1\nnodes: 2\nssh_from: 203.0.113.7/32\n"
    Path("phalanx.yaml").write_text(text)
    shown = f"AWS was not asked ({why}): sizes and prices come from tables of 2026-11"
    assert phalanx("plan") == 0
    assert shown in phalanx.out
    assert phalanx("template") == 0
    assert "not checked: whether eu-west-1a offers c5.large: `aws ec2 " in phalanx.err
    assert json.loads(phalanx.out)["Parameters"]["Zone"]["Default"] == "eu-west-1a"
    Path("phalanx.yaml").write_text(text + "type: x9.huge\n")
    assert phalanx("plan") == 2
    phalanx.refused("unknown-sizes", why)
