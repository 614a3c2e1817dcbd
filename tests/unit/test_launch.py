"""`phalanx launch` takes what MXNet's launch.py takes: what each of its words comes to, by --dry-run."""

from __future__ import annotations

import json

import pytest
from fake_nodes import roster

from phalanx import cli
from phalanx.cluster.cluster_record import Cluster
from phalanx.schedulers import SCHEDULERS

ROSTER = roster(nodes=3, slots=2)


@pytest.fixture(autouse=True)
def demo(monkeypatch, tmp_path):
    monkeypatch.setenv("PHALANX_STATE_DIR", str(tmp_path / "state"))
    Cluster("demo", "local", "us-east-1", "arn", "54.0.0.1", "/efs").save()
    monkeypatch.setattr(Cluster, "roster", lambda _: ROSTER)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def launched(capsys):
    """The processes that these words would start."""

    def launch(*arguments: str) -> list[dict]:
        assert cli.execute(["launch", "--dry-run", "--json", *arguments]) == 0
        return json.loads(capsys.readouterr().out)

    return launch


def places(processes: list[dict]) -> str:
    return " ".join(f"{process['name']}@{process['node'][-1]}".replace(" ", "") for process in processes)


def test_mxnets_documented_command_runs_unchanged(launched, tmp_path):
    (tmp_path / "hosts").write_text("10.0.1.2\ndeeplearning-worker3\n")
    arguments = [
        "-n",
        "2",
        "-s",
        "2",
        "-H",
        "hosts",
        "--sync-dir",
        "/tmp/mxnet",
        "python",
        "train_mnist.py",
        "--kv-store",
        "dist_sync",
        "-n",
        "5",
    ]
    processes = launched(*arguments)
    assert places(processes) == "scheduler@2 server0@2 server1@3 worker0@2 worker1@3"
    assert processes[0]["env"]["DMLC_PS_ROOT_URI"] == "10.0.1.2"
    assert {tuple(process["argv"]) for process in processes} == {tuple(arguments[8:])}


def test_servers_are_as_many_as_workers_and_hosts_all_nodes(launched):
    assert places(launched("-n", "4", "true")) == (
        "scheduler@1 server0@1 server1@2 server2@3 server3@1 worker0@1 worker1@2 worker2@3 worker3@1"
    )


def test_the_nodes_own_list_of_workers_is_all_nodes(launched):
    assert places(launched("-n", "3", "-s", "1", "-H", "/opt/deeplearning/workers", "true")) == (
        "scheduler@1 server0@1 worker0@1 worker1@2 worker2@3"
    )


def test_dmlc_submits_spellings_are_taken(launched):
    arguments = ("--cluster", "mpi", "--num-workers", "1", "--num-servers", "1", "--sync-dst-dir", "/tmp/x")
    assert places(launched(*arguments, "true")) == "scheduler@1 server0@1 worker0@1"


def test_local_stays_on_the_head(launched):
    assert places(launched("--launcher", "local", "-n", "2", "-s", "1", "true")) == (
        "scheduler@1 server0@1 worker0@1 worker1@1"
    )


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_batch_system_is_asked_for_the_nodes(monkeypatch, scheduler):
    seen = []
    monkeypatch.setattr("phalanx.cli.launch.start", lambda _, spec, *_rest: seen.append(spec) or 0)
    assert cli.execute(["launch", "--launcher", scheduler, "--via-option", "-q all", "-n", "2", "true"]) == 0
    assert (seen[0].via, seen[0].via_options, seen[0].hosts) == (scheduler, ("-q", "all"), ())


def test_variables_reach_the_role_that_they_are_for(launched, monkeypatch):
    monkeypatch.setenv("PS_VERBOSE", "2")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cret")
    env = ["--env", "PS_VERBOSE,LR:0.1", "--env", "URL:http://x:80"]
    server = ["--env-server", "OMP_NUM_THREADS:1,A:b:c", "--env-worker", "GPUS:0,1"]
    scheduler, one, other = launched(*env, *server, "--p3", "-n", "1", "true")
    own = ("PS_VERBOSE", "LR", "URL", "DMLC_PS_VAN_TYPE", "OMP_NUM_THREADS", "A", "GPUS", "AWS_SECRET_ACCESS_KEY")
    common = ["2", "0.1", "http://x:80", "p3"]
    assert [scheduler["env"].get(name) for name in own] == [*common, None, None, None, None]
    assert [one["env"].get(name) for name in own] == [*common, "1", "b:c", None, None]
    assert [other["env"].get(name) for name in own] == [*common, None, None, "0,1", None]


@pytest.mark.parametrize(
    ("arguments", "status", "shown"),
    [
        (["-n", "7", "true"], 7, "7 processes were requested; 3 nodes have room for 6"),
        (["true"], 2, "Missing option '-n'"),
        (["-n", "1", "--env", "NOWHERE_SET", "true"], 2, "'NOWHERE_SET' is not set in your environment"),
        (["-n", "1", "--env-server", "A=b", "true"], 2, "'A=b' is not of the form NAME:VALUE"),
        (["-n", "1", "--launcher", "local", "-H", "hosts", "true"], 2, "--launcher local takes no hosts file"),
        (["-n", "1", "-H", "hosts", "true"], 2, "hosts:2: 172.16.9.9 is not a node of cluster"),
        (["-n", "1", "--launcher", "mesos", "true"], 2, "'mesos' is not one of 'ssh', 'mpi', 'local'"),
        (["-n", "1", "-H", "nosuch", "true"], 2, "can't read the hosts file nosuch"),
    ],
)
def test_invalid_options_are_reported_in_one_line(capsys, tmp_path, arguments, status, shown):
    (tmp_path / "hosts").write_text("10.0.1.2\n172.16.9.9\n")
    assert cli.execute(["launch", "--dry-run", *arguments]) == status
    assert shown in capsys.readouterr().err
