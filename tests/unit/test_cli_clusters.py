"""`phalanx up`, `status`, `nodes`, `scale` and `down`, with a cloud in memory."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from fake_cloud import HEAD_FAILED, MISSING, event, roster
from verdicts import is_gone

from phalanx.aws.inventory.orphans import Orphans
from phalanx.aws.model import Running
from phalanx.cluster.cluster_record import Cluster
from phalanx.errors import ClusterError
from phalanx.runner.files.job_status import JobState, JobStatus


def test_up_shows_events_nodes_and_what_comes_next(phalanx, cloud):
    cloud.roster = roster(2, missing=[MISSING])
    assert phalanx("up") == 0
    assert "CREATE_COMPLETE     Vpc (EC2::VPC)" in phalanx.err
    assert "deeplearning-worker2 (10.0.1.12) answered: 2 of 3" in phalanx.err
    assert "missing  deeplearning-worker3: InsufficientInstanceCapacity" in phalanx.out
    assert "54.0.0.1" in phalanx.out
    assert "phalanx down" in phalanx.out


def test_up_and_status_say_where_networks_decide_nothing(phalanx, cloud, monkeypatch):
    monkeypatch.setattr("phalanx.cli.status._ask_head", lambda _: {"jobs_running": 0, "jobs_damaged": 0})
    assert phalanx("up") == 0
    assert "note" not in phalanx.out
    assert phalanx("status") == 0
    assert "note" not in phalanx.out
    cloud.networks = (
        "Networks are open: security groups decide nothing (nft is not installed).\nsudo apt-get install nftables"
    )
    assert phalanx("up") == 0
    assert phalanx.out.count("note     Networks are open") == 1
    assert "note     sudo apt-get install nftables" in phalanx.out
    assert phalanx("status") == 0
    assert phalanx.out.count("note      Networks are open") == 1
    assert "note      sudo apt-get install nftables" in phalanx.out
    assert phalanx("status", "--json") == 0
    assert json.loads(phalanx.out)["open_networks"] == cloud.networks


def test_on_a_terminal_the_last_line_shows_what_is_in_progress(phalanx, cloud, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert phalanx("up") == 0
    assert "creating cluster demo" in phalanx.err
    assert "CREATE_COMPLETE" in phalanx.err


def test_up_and_down_are_a_few_lines_on_a_terminal_and_all_events_elsewhere(phalanx, cloud, monkeypatch):
    def shown(*arguments: str) -> list[str]:
        assert phalanx(*arguments) == 0
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
    assert "nothing was changed" in phalanx.out
    with Path("phalanx.yaml").open("a") as file:
        file.write("\nlease: 9h\n")
    assert phalanx("up", "--yes") == 0
    assert "nothing was changed" not in phalanx.out


def test_up_prints_json_alone_on_standard_output(phalanx, cloud):
    assert phalanx("up", "--json") == 0
    state = json.loads(phalanx.out)
    assert (state["state"], state["already"], len(state["nodes"])) == ("CREATE_COMPLETE", False, 2)


def test_a_failed_up_shows_the_reason_the_log_and_its_exit_code(phalanx, cloud):
    cloud.script = list(HEAD_FAILED)
    assert phalanx("up") == 4
    phalanx.refused("stack-failed", "`false` ended with 1", "boot log of 10.0.0.5", "the name is free")
    assert cloud.stopped


def test_ctrl_c_during_up_shows_how_to_go_on(phalanx, cloud, monkeypatch):
    def interrupt(**_):
        raise KeyboardInterrupt

    monkeypatch.setattr(cloud, "describe_stack_events", interrupt)
    assert phalanx("up") == 130
    assert "`phalanx up` follows it again, `phalanx down` removes it" in phalanx.err
    monkeypatch.undo()
    assert cloud.state("demo") is not None


@pytest.mark.parametrize("moment", ["phalanx.connection.connect", "fake_cloud.FakeAws.describe_stacks"])
def test_ctrl_c_before_anything_was_requested_says_so(phalanx, cloud, monkeypatch, moment):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(moment, interrupt)
    assert phalanx("up") == 130
    assert phalanx.err == "interrupted; nothing was requested. `phalanx up` starts again.\n"
    assert not cloud.stacks


def test_ctrl_c_while_the_stack_is_requested_says_that_it_may_be_there(phalanx, cloud, monkeypatch):
    request = cloud.create_stack

    def interrupt(**given):
        request(**given)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(cloud, "create_stack", interrupt)
        assert phalanx("up") == 130
    assert "interrupted; stack demo may have been requested\n`phalanx up` follows it or starts again" in phalanx.err
    assert "nothing was requested" not in phalanx.err
    assert phalanx("up") == 0


def test_a_no_to_a_question_says_that_nothing_was_changed(phalanx, cloud, monkeypatch):
    monkeypatch.setattr("phalanx.cli.down.list_jobs", lambda cluster: [])
    phalanx("up")
    typed(monkeypatch, "n")
    assert phalanx("down") == 130
    assert phalanx.err.endswith("cancelled; nothing was changed\n")
    assert cloud.state("demo").ready


@pytest.mark.parametrize("separated", [True, False])
def test_status_says_where_jobs_run_as_root(phalanx, cloud, monkeypatch, separated):
    monkeypatch.setattr("phalanx.cli.status._ask_head", lambda _: {"jobs_running": 0, "jobs_damaged": 0})
    monkeypatch.setattr(cloud, "accounts_separated", lambda: separated)
    assert phalanx("up") == 0
    assert ("jobs run as root on these nodes" in phalanx.out) is not separated
    assert phalanx("status") == 0
    assert ("jobs run as root on these nodes" in phalanx.out) is not separated


@pytest.mark.parametrize(
    ("kind", "gpus", "shown"),
    [("g4dn.12xlarge", 0, "none; the type has 4 on AWS"), ("g4dn.12xlarge", 4, "4 on a node"), ("c5.large", 0, "")],
)
def test_status_says_how_many_gpus_nodes_have(phalanx, cloud, monkeypatch, tmp_path, kind, gpus, shown):
    """A local node has none, unless `phalanx local gpus` gave it stand-ins."""
    monkeypatch.setattr("phalanx.cli.status._ask_head", lambda _: {"jobs_running": 0, "jobs_damaged": 0})
    (tmp_path / "phalanx.yaml").write_text(f"name: demo\ncloud: local\nnodes: 2\ntype: {kind}\n")
    whole = roster(2)
    cloud.roster = whole._replace(nodes=tuple(node._replace(gpus=gpus) for node in whole.nodes))
    assert phalanx("up") == 0
    assert phalanx("status") == 0
    lines = [line for line in phalanx.out.splitlines() if line.startswith("gpus")]
    assert [shown in line for line in lines] == ([True] if shown else [])


def test_status_shows_missing_nodes_and_the_head(phalanx, cloud, monkeypatch):
    counts = {"jobs_running": 1, "jobs_damaged": 0}
    monkeypatch.setattr("phalanx.cli.status._ask_head", lambda cluster: counts)
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


def test_nodes_lists_members_and_missing_nodes(phalanx, cloud):
    whole = roster(3, missing=[MISSING])
    cloud.roster = whole._replace(nodes=whole.nodes[:2], silent=whole.nodes[2:])
    phalanx("up")
    assert phalanx("nodes") == 0
    assert "10.0.1.12" in phalanx.out
    assert phalanx("nodes", "--json") == 0
    rows = json.loads(phalanx.out)
    assert [row["role"] for row in rows] == ["head", "worker", "worker", "worker"]
    assert [row["state"].split(":")[0] for row in rows] == ["ready", "ready", "silent", "missing"]


def test_a_silent_node_is_reported_and_is_not_ready(phalanx, cloud, monkeypatch):
    monkeypatch.setattr("phalanx.cli.status._ask_head", lambda _: {"jobs_running": 0, "jobs_damaged": 0})
    whole = roster(3)
    cloud.roster = whole._replace(nodes=whole.nodes[:2], silent=whole.nodes[2:])
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
    assert is_gone(phalanx.out)
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
    for arguments in (["down"], ["down", "--json"], ["scale", "1"]):
        assert phalanx(*arguments) == 2
        assert "add --yes" in phalanx.err
    assert cloud.state("demo").status == "CREATE_COMPLETE"


@pytest.mark.parametrize(("answer", "status"), [("n", 130), ("y", 0)])
def test_down_names_the_jobs_that_it_would_end(phalanx, cloud, monkeypatch, answer, status):
    jobs = [a_status("261121-1", "running"), a_status("261121-2", "failed"), a_status("261121-3", "pending")]
    monkeypatch.setattr("phalanx.cli.down.list_jobs", lambda cluster: jobs)
    phalanx("up")
    typed(monkeypatch, answer)
    assert phalanx("down") == status
    assert "Delete cluster demo (local)? Jobs 261121-1 and 261121-3 run on it and end with it. [y/N]" in phalanx.err


def test_down_says_so_when_the_head_can_t_be_asked_for_jobs(phalanx, cloud, monkeypatch):
    def list_jobs(cluster):
        raise ClusterError("can't log in to the head: it does not answer")

    monkeypatch.setattr("phalanx.cli.down.list_jobs", list_jobs)
    phalanx("up")
    typed(monkeypatch, "y")
    assert phalanx("down") == 0
    assert "Its jobs could not be listed: can't log in to the head: it does not answer." in phalanx.err


def test_a_smaller_scale_names_the_jobs_that_it_would_end_and_min(phalanx, cloud, monkeypatch, tmp_path):
    monkeypatch.setattr("phalanx.cluster.scaling.Scaling.jobs_in_the_way", lambda _: ["261121-1"])
    (tmp_path / "phalanx.yaml").write_text("name: demo\nnodes: 2\nmin: 2\n")
    phalanx("up")
    typed(monkeypatch, "n")
    assert phalanx("scale", "1") == 6
    assert "261121-1 would lose deeplearning-worker2" in phalanx.err
    assert phalanx("scale", "1", "--force") == 130
    question = (
        "Scale cluster demo from 2 to 1 node? That is fewer than `min: 2` in phalanx.yaml. Job 261121-1 ends. [y/N]"
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
    for line, arguments in (("keep: No  # really", []), ("", []), ("keep: no", ["--keep", "yes"])):
        spec.write_text(f"{text}{line}\n")
        phalanx("up")
        assert phalanx("down", "--yes", *arguments) == 0
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


def test_up_makes_a_removed_cluster_again_and_leaves_nothing_of_the_first(phalanx, cloud):
    phalanx("up")
    (first,) = cloud.stacks.values()
    first.state = replace(first.state, status="DELETE_COMPLETE")
    first.script.append(event(90, "RemovalRole", "CREATE_COMPLETE", "AWS::IAM::Role"))
    first.shown = len(first.script)
    assert phalanx("up") == 0
    assert "the stack of cluster demo was deleted since; making it again" in phalanx.err
    assert cloud.deleted_roles == ["physical-RemovalRole"] and cloud.deleted_file_systems == []
    assert len(cloud.stacks) == 2


def test_status_and_nodes_show_which_nodes_have_earlier_settings(phalanx, cloud, monkeypatch):
    monkeypatch.setattr("phalanx.cli.status._ask_head", lambda _: {"jobs_running": 0, "jobs_damaged": 0})
    phalanx("up")
    cloud.outdated_now = [cloud.roster.nodes[1].instance_id]
    assert phalanx("status") == 0
    assert "outdated  deeplearning-worker2: launched with earlier settings" in phalanx.out
    phalanx("status", "--json")
    assert json.loads(phalanx.out)["outdated"] == ["deeplearning-worker2"]
    phalanx("nodes")
    assert phalanx.out.count("ready (outdated: launched with earlier settings)") == 1
    phalanx("nodes", "--json")
    assert [row["outdated"] for row in json.loads(phalanx.out)] == [False, True]


def test_why_names_the_cause_after_the_rollback_too(phalanx, cloud):
    cloud.script = list(HEAD_FAILED)
    assert phalanx("up") != 0
    assert "The cause: the boot script failed" not in phalanx.err, "its words are not the agent's here"
    assert phalanx("why") == 0
    assert "`false` ended with 1" in phalanx.out
    assert phalanx("why", "--json") == 0
    assert json.loads(phalanx.out)["evidence"][0]["source"] == "up"


def test_why_without_a_cluster_or_without_a_fault(phalanx, cloud, monkeypatch):
    monkeypatch.setattr("phalanx.jobs.toolbox.closed", lambda *_: "")
    monkeypatch.setattr("phalanx.cli.why.list_jobs", lambda _: [])
    assert phalanx("why") != 0
    phalanx.refused("no-cluster", "no failed creation")
    phalanx("up")
    assert phalanx("why") == 0
    assert "nothing is wrong" in phalanx.out
    cloud.running_now = Running(nodes=0, stopped=True, end_s=None)
    phalanx("why")
    assert "both groups are at 0" in phalanx.out


def test_reap_lists_what_is_left_of_clusters_without_a_stack(phalanx, cloud, monkeypatch):
    left = [Orphans("old", "", ("VPC vpc-1",)), Orphans("stuck", "ROLLBACK_COMPLETE", ())]
    monkeypatch.setattr("phalanx.aws.inventory.orphans.find", lambda api, trouble: left)
    assert phalanx("reap") == 1
    assert phalanx.out.splitlines() == [
        "Of cluster old is left (it has no stack):",
        "  VPC vpc-1",
        "Of cluster stuck is left (its stack is ROLLBACK_COMPLETE, and `phalanx down -c stuck` deletes it):",
    ]
    assert phalanx("reap", "--json") == 1
    assert json.loads(phalanx.out)[0]["lines"] == ["VPC vpc-1"]
    left.clear()
    assert phalanx("reap", "--region", "eu-central-1") == 0
    assert "Nothing is left of any cluster in eu-central-1" in phalanx.out


def test_a_question_shows_the_control_characters_that_a_node_sent(phalanx, cloud, monkeypatch):
    def list_jobs(cluster):
        raise ClusterError("can't log in to the head: \x1b]52;c;cm0=\x07")

    monkeypatch.setattr("phalanx.cli.down.list_jobs", list_jobs)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    phalanx("up")
    typed(monkeypatch, "n")
    assert phalanx("down") == 130
    assert r"to the head: \x1b]52;c;cm0=\x07. [y/N]" in phalanx.err and "\x1b]52" not in phalanx.err
