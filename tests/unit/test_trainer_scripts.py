"""The contents of the shell scripts of `phalanx tf-scripts`; tests/parts runs them."""

from __future__ import annotations

import io
import tarfile
from types import SimpleNamespace

import pytest
from fake_nodes import roster

from phalanx import cli
from phalanx.cluster.cluster_record import Cluster
from phalanx.errors import SpecError
from phalanx.jobs.environment_store import MadeEnvironment
from phalanx.jobs.environments import recipe
from phalanx.jobs.trainer_scripts import Host, hosts, scripts
from phalanx.ssh.remote import Completed, Remote

ROSTER = roster(nodes=3, slots=2)
GPUS = ROSTER._replace(nodes=tuple(node._replace(gpus=4, slots=4) for node in ROSTER.nodes))
NAMES = [f"deeplearning-worker{number}" for number in (1, 2, 3)]


def test_one_worker_for_each_gpu_else_for_each_slot():
    assert hosts(ROSTER) == [Host(name, 2, has_gpus=False) for name in NAMES]
    assert hosts(ROSTER, workers=0) == hosts(ROSTER), "the number of GPUs where there are none"
    assert hosts(GPUS, count=2) == [Host(name, 4, has_gpus=True) for name in NAMES[:2]]
    assert hosts(GPUS, names=NAMES[1:], workers=1) == [Host(name, 1, has_gpus=True) for name in NAMES[1:]]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"names": ["deeplearning-worker9"]}, "no host deeplearning-worker9 in cluster"),
        ({"names": [NAMES[0], NAMES[0]]}, "names deeplearning-worker1 twice"),
        ({"count": 4}, "--worker_count is 4; there are 3 hosts"),
        ({"workers": 5}, "--worker_gpu_count is 5; deeplearning-worker1 has 4 GPUs"),
    ],
)
def test_impossible_peers_are_refused(asked, message):
    with pytest.raises(SpecError, match=message):
        hosts(GPUS, **asked)


def test_a_script_starts_its_hosts_server_and_workers_with_the_documented_ports():
    texts = scripts(
        [Host("one", 2, has_gpus=True), Host("two", 2, has_gpus=True)], "python", ("/efs/t.py", "-b", "8"), "/l"
    )
    assert list(texts) == ["one", "two"]
    peers = "--ps_hosts=one:2222,two:2222 --worker_hosts=one:2230,one:2231,two:2230,two:2231"
    common = f"python /efs/t.py -b 8 {peers} --job_name="
    assert f"CUDA_VISIBLE_DEVICES='' {common}ps --task_index=1 > \"$logs/ps1\" 2>&1 &" in texts["two"]
    for number, gpu in ((2, 0), (3, 1)):
        assert f"(CUDA_VISIBLE_DEVICES='{gpu}' {common}worker --task_index={number};" in texts["two"]
    assert "--task_index=0" not in texts["two"]


def test_a_program_must_be_named_in_full():
    with pytest.raises(SpecError, match=r"t\.py is relative"):
        scripts([Host("one", 1, has_gpus=False)], "python", ("t.py",), "/l")


@pytest.fixture
def cluster(monkeypatch):
    """A cluster known by its record; yields what is sent to its head as an archive."""
    sent = {}

    def run(_remote, command, *, input=None, timeout_s, check=True):
        with tarfile.open(fileobj=io.BytesIO(input or b"")) as archive:
            sent.update(
                {member.name: (archive.extractfile(member) or io.BytesIO()).read().decode() for member in archive}
            )
        sent["command"] = command
        return Completed(0, b"", b"")

    monkeypatch.setattr(Remote, "run", run)
    monkeypatch.setattr(Cluster, "roster", lambda _: ROSTER)
    monkeypatch.setattr(
        "phalanx.cli.tf_scripts.load_cluster",
        lambda *_: Cluster("demo", "local", "us-east-1", head_address="1.2.3.4", shared="/efs"),
    )
    return sent


def test_what_is_no_option_of_the_command_goes_to_the_program(cluster, tmp_path, capsys):
    arguments = ["--training_script", "/efs/t.py", "--batch_size", "128", "--log_dir", "/efs/logs", "--data_dir=/efs/d"]
    assert (
        cli.execute(["tf-scripts", "--trainer_script_dir", str(tmp_path / "s"), *arguments, "--worker_gpu_count", "1"])
        == 0
    )
    assert sorted(path.name for path in (tmp_path / "s").iterdir()) == [f"{name}.sh" for name in NAMES]
    text = (tmp_path / "s" / f"{NAMES[0]}.sh").read_text()
    assert "python /efs/t.py --batch_size 128 --data_dir=/efs/d --ps_hosts=" in text
    assert "\nlogs=/efs/logs\n" in text
    assert capsys.readouterr().out.splitlines()[0] == str(tmp_path / "s" / f"{NAMES[0]}.sh")


def test_the_scripts_run_in_the_environment_of_a_recipe(cluster, tmp_path, monkeypatch, capsys):
    digest = recipe("tensorflow").environment.digest
    made = [MadeEnvironment("tensorflow", "/efs/e", complete=True, in_use=False, removed=False, digest=digest)]
    monkeypatch.setattr("phalanx.cli.tf_scripts.made_environments", lambda _: made)
    arguments = ["--trainer_script_dir", str(tmp_path), "--training_script", "/efs/t.py", "--recipe", "tensorflow"]
    assert cli.execute(["tf-scripts", *arguments]) == 0
    assert "\nsource /efs/e/bin/activate\nlogs=" in (tmp_path / f"{NAMES[0]}.sh").read_text()
    made.clear()
    assert cli.execute(["tf-scripts", *arguments]) == 2
    assert "phalanx recipes --make tensorflow" in capsys.readouterr().err


def test_a_recipe_is_made_by_a_job_that_does_nothing_on_each_node(monkeypatch):
    started = []
    monkeypatch.setattr("phalanx.cli.recipes.load_cluster", lambda *_: SimpleNamespace(require_ready=lambda: None))
    monkeypatch.setattr("phalanx.cli.recipes.start", lambda _, spec, detach: started.append((spec, detach)) or 0)
    assert cli.execute(["recipes", "--make", "jax"]) == 0
    ((spec, detach),) = started
    assert (spec.command, spec.launcher, spec.per_node, detach) == (("true",), "exec", 1, False)
    assert spec.environment == recipe("jax").environment


def test_scripts_below_the_shared_directory_are_written_there(cluster):
    arguments = ["--trainer_script_dir", "/efs/my scripts", "--training_script", "/efs/t.py", "--worker_count", "2"]
    assert cli.execute(["tf-scripts", *arguments]) == 0
    assert cluster["command"] == "mkdir -p '/efs/my scripts' && tar -xC '/efs/my scripts'"
    assert "\nlogs='/efs/my scripts/logs'\n" in cluster[f"{NAMES[1]}.sh"]


def test_a_missing_or_empty_workers_file_is_reported(cluster, tmp_path, capsys):
    for path, message in ((tmp_path / "none", "can't read the workers file"), (tmp_path / "empty", "names no host")):
        (tmp_path / "empty").write_text("\n")
        arguments = [
            "--trainer_script_dir",
            "/efs/s",
            "--training_script",
            "/efs/t.py",
            "--workers_file_path",
            str(path),
        ]
        assert cli.execute(["tf-scripts", *arguments]) == 2
        assert message in capsys.readouterr().err
