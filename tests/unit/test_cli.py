"""The command line, typed at a cloud in memory: output, exit codes, messages."""

from __future__ import annotations

import importlib
import inspect
import io
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from fake_cloud import HEAD_FAILED, MISSING, FakeCloud, roster, write_key
from prompts import Prompt

from phalanx import cli, clouds, template
from phalanx.cli import following
from phalanx.cli.console import duration
from phalanx.clouds import endpoint
from phalanx.cluster import cluster_record as store
from phalanx.cluster.cluster_record import Cluster
from phalanx.errors import CloudError, CloudUnreachable, ClusterError, JobError, SpecError
from phalanx.jobs.job_model import JobState, JobStatus
from phalanx.jobs.job_output import OutputLine
from phalanx.ssh.remote import Remote
from phalanx.template import request


@pytest.fixture
def phalanx(tmp_path, monkeypatch, capsys):
    return Prompt(tmp_path, monkeypatch, capsys)


@pytest.fixture
def cloud(monkeypatch, tmp_path):
    fake = FakeCloud()
    monkeypatch.setattr(clouds, "get", lambda name, region: fake)
    monkeypatch.setattr(clouds, "begin", lambda name: None)
    monkeypatch.setattr(endpoint, "find", lambda: "it runs")
    monkeypatch.setattr(Remote, "connect", lambda remote: None)
    monkeypatch.setattr(store, "_generate", write_key)
    monkeypatch.setattr(template, "request", lambda plan: ("{}", plan.parameters()))
    (tmp_path / "phalanx.yaml").write_text("name: demo\nnodes: 3\nmin: 1\n")
    return fake


def test_a_mistyped_command_brings_the_nearest(phalanx):
    assert phalanx("statsu") == 2
    assert "Did you mean 'status'?" in phalanx.err


@pytest.mark.parametrize("words", [["up"], ["local", "status"], []])
def test_help_is_a_command_too(phalanx, words):
    assert phalanx("help", *words) == 0
    shown = phalanx.out
    phalanx(*words, "--help")
    assert shown == phalanx.out


@pytest.mark.parametrize(("node", "command"), [("ps aux", "ps aux"), ("ps", "ps"), ("cat 'a b'", "cat 'a b'")])
def test_a_command_in_a_node_s_place_brings_the_right_form(phalanx, cloud, monkeypatch, node, command):
    phalanx("up")
    monkeypatch.setattr(Cluster, "roster", lambda _: roster(2))
    assert phalanx("ssh", node) == 6
    assert f"no node '{node}' in cluster demo\n" in phalanx.err
    assert f"`phalanx ssh -- {command}` runs a command on the head, `phalanx exec -- {command}` on all" in phalanx.err


@pytest.mark.parametrize("command", [name for section in cli.COMMANDS.values() for name in section])
def test_every_command_has_help_with_examples(phalanx, command):
    assert phalanx(command, "--help") == 0
    assert f"phalanx {command}" in phalanx.out.partition("Examples:")[2]


def test_every_command_that_prints_a_table_has_json():
    modules = [importlib.import_module(module) for section in cli.COMMANDS.values() for module, _ in section.values()]
    tabular = [module for module in modules if "print_table(" in inspect.getsource(module)]
    assert len(tabular) > 5
    for module in tabular:
        commands = list(getattr(module.command, "commands", {"": module.command}).values())
        assert any(option.name == "as_json" for command in commands for option in command.params), module.__name__


def test_the_one_line_help_of_the_table_is_the_command_s_own(phalanx):
    phalanx("--help")
    for section in cli.COMMANDS.values():
        for name, (_, line) in section.items():
            assert f"{name} " in phalanx.out
            assert line.endswith(".")


def test_init_refuses_a_name_that_the_next_command_would_refuse(phalanx, tmp_path):
    assert phalanx("init", "--name", "9lives") == 2
    assert "--name: '9lives' can't be the name of a cluster" in phalanx.err
    assert not (tmp_path / "phalanx.yaml").exists()


def test_a_plan_and_a_template_for_aws_need_no_credentials_offline(phalanx, tmp_path, monkeypatch):
    monkeypatch.setattr(clouds, "get", lambda name, region: pytest.fail("the cloud was asked"))
    text = "name: demo\ncloud: aws\nregion: eu-west-1\nnodes: 2\nssh_from: 203.0.113.7/32\n"
    (tmp_path / "phalanx.yaml").write_text(text)
    assert phalanx("plan", "--offline", "--json") == 0
    assert json.loads(phalanx.out)["zone"] == "eu-west-1a"
    assert phalanx("template", "--offline") == 0
    assert json.loads(phalanx.out)["Parameters"]["Zone"]["Default"] == "eu-west-1a"
    (tmp_path / "phalanx.yaml").write_text(text + "type: x9.huge\n")
    assert phalanx("plan", "--offline") == 2
    assert "phalanx.yaml:6: type: the sizes of x9.huge are not known here" in phalanx.err


@pytest.mark.parametrize("why", ["no AWS credentials were found", "AWS in eu-west-1 does not answer"])
def test_without_credentials_or_a_connection_the_tables_answer_and_it_is_said(phalanx, cloud, monkeypatch, why):
    def facts(spec, key):
        raise CloudUnreachable(why, "")

    monkeypatch.setattr(cloud, "facts", facts)
    text = "name: demo\ncloud: aws\nregion: eu-west-1\nnodes: 2\nssh_from: 203.0.113.7/32\n"
    Path("phalanx.yaml").write_text(text)
    said = f"AWS was not asked ({why}): sizes, prices and quotas come from tables of 2026-11, and the zone and"
    assert phalanx("plan") == 0
    assert said in phalanx.out
    assert phalanx("template") == 0
    assert said in phalanx.err
    assert json.loads(phalanx.out)["Parameters"]["Zone"]["Default"] == "eu-west-1a"
    Path("phalanx.yaml").write_text(text + "type: x9.huge\n")
    assert phalanx("plan") == 2
    assert f"The cloud, which may know it, was not asked: {why}." in phalanx.err


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


def test_output_that_can_t_be_written_does_not_hide_that_the_job_goes_on(phalanx, monkeypatch):
    class Busy:
        id = "261121-095500-abcd"

        def follow(self, **_):
            yield OutputLine("0", "deeplearning-worker1", "stdout", 0.0, b"epoch 1")

    with io.TextIOWrapper(open("/dev/full", "wb", buffering=0)) as full, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", full)
        with pytest.raises(JobError, match=r"can't write the output of job 261121-095500-abcd: No space left") as told:
            following.follow(Busy())
    assert "`phalanx logs -f 261121-095500-abcd` follows it" in told.value.hint


class Bars:
    """A job whose ranks write a progress bar each, and one a line beside."""

    id = "261121-095500-abcd"

    def follow(self, *, drafts, **_):
        for process, data, is_draft in [
            ("0", b"10%", True),
            ("0", b"20%", True),
            ("1", b"5%", True),
            ("1", b"a line", False),
            ("0", b"\r10%\r20%\r30%\r", False),
            ("1", b"7%", True),
        ]:
            if drafts or not is_draft:
                yield OutputLine(process, "deeplearning-worker1", "stdout", 0.0, data, is_draft)


def test_a_progress_bar_is_one_line_on_a_terminal(capfd, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    following.follow(Bars())
    clear = "\r\x1b[K"
    assert capfd.readouterr().out == clear.join(["[0] 10%", "[0] 20%", "[1] 5%", "[1] a line\n[0] 30%\n[1] 7%\n"])


def test_a_progress_bar_goes_into_a_pipe_as_it_was_written(capfd):
    following.follow(Bars())
    assert capfd.readouterr().out == "[1] a line\n[0] \r10%\r20%\r30%\r\n"


def test_a_state_directory_that_can_t_be_used_is_reported_with_the_way_out(phalanx, cloud, tmp_path):
    (tmp_path / "state").write_text("a file")
    assert phalanx("up") == 1
    assert f"error: {tmp_path}/state/clusters/demo" in phalanx.err
    assert "Set PHALANX_STATE_DIR to use another directory" in phalanx.err
    assert "Error" not in phalanx.err


def test_a_group_of_commands_without_one_shows_its_help(phalanx):
    assert phalanx("local") == 2
    assert phalanx.err.startswith("Usage: ")


def test_init_writes_a_spec_that_loads_and_refuses_to_overwrite_it(phalanx, tmp_path):
    assert phalanx("init", "--name", "vision") == 0
    first = (tmp_path / "phalanx.yaml").read_text()
    assert phalanx("init", "--name", "other") == 2
    assert "--force" in phalanx.err
    assert (tmp_path / "phalanx.yaml").read_text() == first
    assert phalanx("plan") == 0
    assert "vision" in phalanx.out


def test_the_template_is_on_screen_and_in_a_file_what_up_sends(phalanx, cloud, tmp_path, monkeypatch):
    monkeypatch.setattr(template, "request", request)
    assert phalanx("up") == 0
    (sent,) = map(json.loads, cloud.sent)
    values = cloud.describe_stack("demo").parameters
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


def test_up_shows_events_nodes_and_what_comes_next(phalanx, cloud):
    cloud.roster = roster(2, missing=[MISSING])
    assert phalanx("up") == 0
    assert "CREATE_COMPLETE     Vpc (EC2::VPC)" in phalanx.err
    assert "deeplearning-worker2 (10.0.1.12) answered: 2 of 3" in phalanx.err
    assert "missing  deeplearning-worker3: InsufficientInstanceCapacity" in phalanx.out
    assert "54.0.0.1" in phalanx.out
    assert "phalanx down" in phalanx.out


def test_on_a_terminal_a_last_line_tells_what_is_being_worked_on(phalanx, cloud, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert phalanx("up") == 0
    assert "creating cluster demo" in phalanx.err
    assert "CREATE_COMPLETE" in phalanx.err


def test_up_and_down_are_a_few_lines_on_a_terminal_and_all_events_elsewhere(phalanx, cloud, monkeypatch):
    def shown(*words: str) -> list[str]:
        assert phalanx(*words) == 0
        return [
            word
            for word in ("Vpc (EC2::VPC)", "worker2 (10.0.1.12) answered", "demo (CloudForm")
            if word in phalanx.err
        ]

    every = ["Vpc (EC2::VPC)", "worker2 (10.0.1.12) answered", "demo (CloudForm"]
    assert (shown("up"), shown("down", "--yes")) == (every, [every[0], every[2]])
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert (shown("up"), shown("down", "--yes")) == ([every[2]], [every[2]])
    assert (shown("up", "-v"), shown("down", "--yes", "-v")) == (every, [every[0], every[2]])


def test_up_again_says_so(phalanx, cloud):
    phalanx("up")
    assert phalanx("up") == 0
    assert "is up already" in phalanx.out


def test_up_prints_json_alone_on_standard_output(phalanx, cloud):
    assert phalanx("up", "--json") == 0
    state = json.loads(phalanx.out)
    assert (state["state"], state["already"], len(state["nodes"])) == ("CREATE_COMPLETE", False, 2)


def test_a_failed_up_shows_the_reason_the_log_and_its_exit_code(phalanx, cloud):
    cloud.script = list(HEAD_FAILED)
    assert phalanx("up") == 4
    assert "boot script failed: `false` ended with 1" in phalanx.err
    assert "the end of the boot log of 10.0.0.5" in phalanx.err
    assert "the name is free" in phalanx.err
    assert cloud.stopped


def test_ctrl_c_during_up_tells_how_to_go_on(phalanx, cloud, monkeypatch):
    def interrupt(stack_id, after):
        raise KeyboardInterrupt

    monkeypatch.setattr(cloud, "events", interrupt)
    assert phalanx("up") == 130
    assert "`phalanx up` follows it again, `phalanx down` removes it" in phalanx.err
    monkeypatch.undo()
    assert cloud.describe_stack("demo") is not None


def test_plan_after_scale_says_what_is_asked_for_now(phalanx, cloud):
    cloud.roster = roster(3)
    phalanx("up")
    assert phalanx("plan") == 0
    assert "up already" not in phalanx.out
    cloud.roster = roster(5)
    assert phalanx("plan") == 0
    assert "Cluster demo is up already; `phalanx scale` requested 5 nodes, which `up` keeps." in phalanx.out
    phalanx("plan", "--json")
    assert json.loads(phalanx.out)["requested"] == 5
    phalanx("plan", "--offline", "--json")
    assert json.loads(phalanx.out)["requested"] is None


def test_status_tells_missing_nodes_and_the_head(phalanx, cloud, monkeypatch):
    counts = {"jobs_running": 1, "jobs_damaged": 0}
    monkeypatch.setattr("phalanx.cli.status._count_jobs", lambda cluster: counts)
    cloud.roster = roster(2, missing=[MISSING])
    phalanx("up")
    assert phalanx("status") == 0
    assert "2 ready of 3" in phalanx.out
    assert "deeplearning-worker3: InsufficientInstanceCapacity" in phalanx.out
    assert phalanx("status", "--json") == 0
    assert json.loads(phalanx.out)["jobs_running"] == 1
    counts["jobs_running"] = "unknown: it reboots"
    assert phalanx("status") == 0
    assert "jobs      unknown: it reboots\n" in phalanx.out


def test_nodes_lists_who_is_there_and_who_is_not(phalanx, cloud):
    whole = roster(3, missing=[MISSING])
    cloud.roster = replace(whole, nodes=whole.nodes[:2], silent=whole.nodes[2:])
    phalanx("up")
    assert phalanx("nodes") == 0
    assert "10.0.1.12" in phalanx.out
    assert phalanx("nodes", "--json") == 0
    rows = json.loads(phalanx.out)
    assert [row["role"] for row in rows] == ["head", "worker", "worker", "worker"]
    assert [row["state"].split(":")[0] for row in rows] == ["ready", "ready", "silent", "missing"]


def test_a_silent_node_is_reported_and_is_not_ready(phalanx, cloud, monkeypatch):
    monkeypatch.setattr("phalanx.cli.status._count_jobs", lambda _: {"jobs_running": 0, "jobs_damaged": 0})
    whole = roster(3)
    cloud.roster = replace(whole, nodes=whole.nodes[:2], silent=whole.nodes[2:])
    assert phalanx("up") == 0
    assert "  nodes    2 of 3" in phalanx.out and "  silent   deeplearning-worker3: no sign of life" in phalanx.out
    assert phalanx("status") == 0
    assert "nodes     2 ready of 3\nsilent    deeplearning-worker3: no sign of life" in phalanx.out
    assert phalanx("status", "--json") == 0
    silent = {"name": "deeplearning-worker3", "instance_id": "i-3", "address": "10.0.1.13"}
    assert (json.loads(phalanx.out)["silent"], json.loads(phalanx.out)["missing"]) == ([silent], [])


def test_down_deletes_and_a_second_one_has_nothing_to_do(phalanx, cloud):
    phalanx("up")
    assert phalanx("down", "--yes") == 0
    assert "nothing of it is left" in phalanx.out
    assert phalanx("down", "--yes") == 0
    assert "Nothing to do" in phalanx.out


def typed(monkeypatch, answer: str) -> None:
    """There is a terminal, at which somebody answers this."""
    terminal = io.StringIO(f"{answer}\n")
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", terminal)


def a_status(job: str, state: str) -> JobStatus:
    return JobStatus(job, "", "exec", ("true",), JobState(state), 0.0, None, None, 1, None, "", (), ())


def test_without_a_terminal_nothing_goes_but_by_yes(phalanx, cloud, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    phalanx("up")
    for words in (["down"], ["down", "--json"], ["scale", "1"]):
        assert phalanx(*words) == 2
        assert "there is no terminal to confirm this on: add --yes" in phalanx.err
    assert cloud.describe_stack("demo").status == "CREATE_COMPLETE"


@pytest.mark.parametrize(("answer", "status"), [("n", 130), ("y", 0)])
def test_down_names_the_jobs_that_it_would_end(phalanx, cloud, monkeypatch, answer, status):
    jobs = [a_status("261121-1", "running"), a_status("261121-2", "failed"), a_status("261121-3", "pending")]
    monkeypatch.setattr("phalanx.jobs.job.list_jobs", lambda cluster: jobs)
    phalanx("up")
    typed(monkeypatch, answer)
    assert phalanx("down") == status
    assert "Delete cluster demo (local)? Jobs 261121-1 and 261121-3 run on it and end with it. [y/N]" in phalanx.err


def test_down_says_so_when_the_head_can_t_be_asked_for_jobs(phalanx, cloud, monkeypatch):
    def list_jobs(cluster):
        raise ClusterError("can't log in to the head: it does not answer")

    monkeypatch.setattr("phalanx.jobs.job.list_jobs", list_jobs)
    phalanx("up")
    typed(monkeypatch, "y")
    assert phalanx("down") == 0
    assert "Its jobs could not be listed: can't log in to the head: it does not answer." in phalanx.err


def test_a_smaller_scale_names_the_jobs_that_it_would_end_and_min(phalanx, cloud, monkeypatch, tmp_path):
    monkeypatch.setattr("phalanx.clouds.scaling.Scaling.jobs_in_the_way", lambda _: ["261121-1"])
    (tmp_path / "phalanx.yaml").write_text("name: demo\nnodes: 2\nmin: 2\n")
    phalanx("up")
    typed(monkeypatch, "n")
    assert phalanx("scale", "1") == 6
    assert "261121-1 would lose deeplearning-worker2" in phalanx.err
    assert phalanx("scale", "1", "--force") == 130
    question = (
        "Scale cluster demo from 2 to 1 nodes? That is fewer than `min: 2` in phalanx.yaml. Job 261121-1 ends. [y/N]"
    )
    assert question in phalanx.err


def test_down_takes_the_file_s_word_of_now_and_the_command_line_s_before_that(phalanx, cloud, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "phalanx.cluster.take_down.TakeDown._must_delete_data", lambda done: asked.append(done._keep) or False
    )
    monkeypatch.setattr("phalanx.cluster.take_down.file_systems_of", lambda stack: ("fs-1",))
    spec = Path("phalanx.yaml")
    text = spec.read_text()
    for line, words in (("keep: No  # really", []), ("", []), ("keep: no", ["--keep", "yes"])):
        spec.write_text(f"{text}{line}\n")
        phalanx("up")
        assert phalanx("down", "--yes", *words) == 0
        assert "aws efs delete-file-system fs-1" in phalanx.out
    assert asked == ["no", None, "yes"]


def test_down_without_a_record_works_by_name(phalanx, cloud):
    cloud.put("demo", "CREATE_COMPLETE")
    assert phalanx("down", "--yes", "--json") == 0
    assert json.loads(phalanx.out)["existed"] is True


def test_down_of_a_local_cluster_whose_local_cloud_is_gone_only_forgets(phalanx, tmp_path):
    Cluster("demo", "local", "us-east-1", "arn", "54.0.0.1").save()
    assert phalanx("down", "-c", "demo", "-y") == 0
    assert not (tmp_path / "state/clusters/demo").exists()


@pytest.mark.parametrize(
    "command", [["status"], ["nodes"], ["ssh"], ["jobs"], ["logs"], ["stop"], ["run", "--", "true"]]
)
def test_a_cluster_that_nobody_knows_is_reported_with_the_way_out(phalanx, command):
    assert phalanx(*command) == 6
    assert "phalanx up" in phalanx.err


def test_an_unexpected_error_is_one_line_and_a_traceback_with_debug(phalanx, cloud, monkeypatch):
    monkeypatch.setattr(cloud, "describe_stack", lambda name: 1 / 0)
    assert phalanx("up") == 1
    assert "ZeroDivisionError" in phalanx.err
    assert "Traceback" not in phalanx.err
    assert phalanx("up", "--debug") == 1
    assert "Traceback" in phalanx.err


def test_a_refusal_of_the_cloud_has_its_own_exit_code(phalanx, cloud):
    cloud.refuse_create = CloudError("these credentials may not", "Request a policy.")
    assert phalanx("up") == 3
    assert "error: these credentials may not\nRequest a policy." in phalanx.err


def test_local_status_without_a_local_cloud(phalanx):
    assert phalanx("local", "env") == 5
    assert phalanx("local", "status", "--json") == 0
    assert json.loads(phalanx.out) == {"running": False}
    assert phalanx("local", "stop") == 0


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.04, "0.0 s"), (4.24, "4.2 s"), (200, "3 min 20 s"), (18180, "5 h 03 min")]
)
def test_durations_are_for_people(seconds, text):
    assert duration(seconds) == text
