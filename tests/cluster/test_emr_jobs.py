"""What people do on an EMR cluster: jobs through YARN, the commands of phalanx, and those of AWS's guide."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from terminals import MADE, ONE_THREAD, Terminal, a_cluster, environments_of, link_complete
from verdicts import is_proven

pytestmark = pytest.mark.cluster

SPEC = """\
name: emr
cloud: local-emr
nodes: 3
min: 3
type: m5.xlarge
slots: 2
keep: no
emr: {logs: s3://emr-logs/here, applications: [Hadoop], via_yarn: yes}
"""
ONE_EACH = ("--via", "yarn", "-n", "2", "-N", "1")
SLEEPS = (*ONE_EACH, "--launcher", "exec", "--", "sleep", "1000")
# The first time, an environment is downloaded and made.
MADE_WITHIN_S = 600
MASTER = "http://deeplearning-master:8088/ws/v1/cluster/"


@pytest.fixture(scope="module")
def emr() -> Iterator[Terminal]:
    with a_cluster(SPEC) as terminal:
        until(lambda: len((asked(terminal, "nodes")["nodes"] or {"node": []})["node"]) == 2, "YARN has two nodes")
        yield terminal
        MADE.mkdir(exist_ok=True)
        link_complete(environments_of(terminal), MADE)


def until(is_so: Callable[[], bool], what: str, timeout_s: float = 240) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.5)


def status(emr: Terminal, job: str) -> dict:
    return next(one for one in json.loads(emr.phalanx("jobs", "--json").stdout) if one["id"] == job)


def start(emr: Terminal, *arguments: str) -> str:
    return emr.phalanx("run", "--detach", *arguments).stdout.strip()


def asked(emr: Terminal, path: str) -> dict:
    """Ask the ResourceManager from the master, as a person there does."""
    line = f"from urllib import request; print(request.urlopen({MASTER + path!r}).read().decode())"
    return json.loads(emr.on("head", f"python3 -c {shlex.quote(line)}"))


def application(emr: Terminal, job: str) -> dict:
    (found,) = (one for one in asked(emr, "apps")["apps"]["app"] if one["name"] == f"phalanx-{job}")
    return found


class TestYarn:
    def test_containers_on_the_core_nodes_run_the_job_as_its_user(self, emr):
        master = emr.on("head", "hostname").strip()
        done = emr.phalanx("run", *ONE_EACH, "--", "sh", "-c", "echo $(hostname) $(id -un) ${CONTAINER_ID-hidden}")
        names, users, hidden = zip(*(line.split("] ")[1].split() for line in done.stdout.splitlines()))  # noqa: B905
        assert len({*names, master}) == 3
        assert (set(users), set(hidden)) == ({"phalanx"}, {"hidden"})
        assert is_proven(done.stderr, 3)

    def test_a_job_for_all_nodes_is_refused_because_the_master_runs_no_containers(self, emr):
        refused = emr.phalanx("run", "--via", "yarn", "--", "true", check=False)
        assert refused.returncode != 0
        assert "needs 3 nodes" in refused.stderr
        assert "-n 2 -N 1" in refused.stderr

    def test_a_job_waits_for_the_nodes_and_what_yarn_kills_ends_with_nothing_left(self, emr):
        first = start(emr, *SLEEPS)
        until(lambda: status(emr, first)["state"] == "running", "the first job runs")
        held = application(emr, first)
        assert (held["user"], held["state"], held["runningContainers"]) == ("phalanx", "RUNNING", 3)
        second = start(emr, *ONE_EACH, "--", "hostname")
        until(lambda: "of its containers wait" in status(emr, second)["message"], "the second job waits")
        as_hadoop(emr, f"yarn application -kill {held['id']}")
        emr.phalanx("logs", "-f", first, check=False)
        found = status(emr, first)
        assert found["state"] == "failed" and "was killed by user hadoop" in found["message"], found
        assert all(node["clean"] for node in found["nodes"])
        assert len(emr.phalanx("logs", "-f", second).stdout.splitlines()) == 2
        assert f"phalanx-{first}" not in emr.on("worker2", "ls /tmp") + emr.on("worker3", "ls /tmp")

    def test_a_stopped_job_gives_its_nodes_back(self, emr):
        job = start(emr, *SLEEPS)
        until(lambda: status(emr, job)["state"] == "running", "the job runs")
        emr.phalanx("stop", job)
        until(lambda: application(emr, job)["runningContainers"] == 0, "the containers have ended")
        assert sum(node["numContainers"] for node in asked(emr, "nodes")["nodes"]["node"]) == 0


class TestCommands:
    def test_the_commands_about_the_cluster_mean_the_same_as_elsewhere(self, emr):
        nodes = json.loads(emr.phalanx("nodes", "--json").stdout)
        assert [node["name"] for node in nodes] == [f"deeplearning-worker{number}" for number in (1, 2, 3)]
        shown = json.loads(emr.phalanx("status", "--json").stdout)
        assert (shown["state"], shown["nodes"] and len(nodes)) == ("CREATE_COMPLETE", 3), shown
        assert "nothing is wrong" in emr.phalanx("why").stdout

    def test_files_go_to_the_shared_directory_and_back(self, emr, tmp_path):
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "one").write_text("one")
        emr.phalanx("put", str(tmp_path / "data"))
        assert emr.on("worker3", "cat /efs/data/one") == "one"
        script = "cat /efs/data/one > out; echo made"
        made = emr.phalanx("run", "--launcher", "exec", "-n", "1", "--", "sh", "-c", script)
        job = json.loads(emr.phalanx("jobs", "--json").stdout)[0]["id"]
        assert made.stdout == "[0] made\n" == emr.phalanx("logs", job).stdout
        home = emr.phalanx("get", job, "out", str(tmp_path / "home")).stdout.strip()
        assert Path(home).read_text() == "one"

    def test_hadoop_administers_and_jobs_run_as_phalanx_without_sudo(self, emr):
        done = emr.phalanx("exec", "--sudo", "--json", "--", "install -d -o hadoop /srv/src && id -un")
        assert [one["stdout"] for one in json.loads(done.stdout)] == ["root\n"] * 3
        assert emr.phalanx("ssh", "--admin", "worker2", "--", "id", "-un").stdout == "hadoop\n"
        assert as_hadoop(emr, "id -un; sudo id -un; touch /srv/src/x") == "hadoop\nroot\n"
        job = emr.phalanx("run", "--launcher", "exec", "-N", "1", "--", "sh", "-c", "id -un; sudo -n true 2>&1 || true")
        assert job.stdout.count("phalanx\n") == 3 and job.stdout.count("not in the group sudo") == 3, job.stdout


class TestSpark:
    def test_spark_prepares_data_and_the_same_nodes_train_on_it(self, emr):
        example = with_environments(emr, "spark_then_train")
        # The quick half of Java's compiler, for all of its processes: they live for seconds.
        quick = ("--env", "JDK_JAVA_OPTIONS=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        chosen = ("--recipe", "spark", "--launcher", "spark", "-n", "2", "-N", "1", *quick)
        prepare = ("python", "prepare.py", "/efs/sensors", "--lines", "1000", "--shards", "2")
        prepared = example.phalanx("run", *chosen, "--", *prepare, timeout_s=MADE_WITHIN_S)
        assert "980 of 1,000 lines in 2 shards, by 2 executors" in prepared.stdout
        assert is_proven(prepared.stderr, 3)
        assert emr.on("worker2", "ls -d /tmp/phalanx-2*; ps -eo args= | grep '[j]ava' || true") == ""
        train = ("--launcher", "torchrun", *ONE_THREAD, "-n", "2", "-N", "1", "--", "train.py", "/efs/sensors")
        assert "accuracy 0.9" in example.phalanx("run", *train).stdout


def as_hadoop(emr: Terminal, script: str) -> str:
    """Run lines on the master as a guide of 2018 has people do it: `ssh -A hadoop@…`, with the key in an agent."""
    hosts, key = emr.directory.parent / "hosts", emr.state / "clusters/emr/id_ecdsa"
    hosts.write_text(emr.phalanx("ssh-config").stdout)
    login = f"ssh-add -q {key} && ssh -n -A -q -F {hosts} -l hadoop emr {shlex.quote(script)}"
    done = subprocess.run(["ssh-agent", "sh", "-c", login], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# AWS's guide to deep learning on EMR, with today's names.
EACH = 'while read -u 10 host; do ssh -o "StrictHostKeyChecking no" $host "{}" ; done 10<$DEEPLEARNING_WORKERS_PATH\n'


class TestGuide:
    """The lines of AWS's guide to deep learning on EMR of 2018, as `hadoop` on the master."""

    def test_the_metadata_is_on_every_node_already(self, emr):
        addresses = [node["address"] for node in json.loads(emr.phalanx("nodes", "--json").stdout)]
        counts = "echo $DEEPLEARNING_WORKERS_COUNT $DEEPLEARNING_WORKER_GPU_COUNT\n"
        shown = as_hadoop(emr, counts + EACH.format("cat worker_ip_file"))
        assert shown.split() == ["3", "0", *addresses * 3]

    def test_a_command_with_sudo_on_all_nodes(self, emr):
        emr.phalanx("exec", "--sudo", "--", "mkdir -p /home/ec2-user/src")
        owned = EACH.format("sudo chown -R hadoop /home/ec2-user/") + EACH.format("sudo chmod -R u+rwx /home/ec2-user/")
        assert as_hadoop(emr, owned + EACH.format("stat -c %U /home/ec2-user/src")).split() == ["hadoop"] * 3

    def test_mxnets_launcher_over_the_workers_file(self, emr):
        """`../../tools/launch.py -n $DEEPLEARNING_WORKERS_COUNT -H $DEEPLEARNING_WORKERS_PATH python …`"""
        example = with_environments(emr, "mxnet_cifar10")
        (example.directory / "hosts").write_text(as_hadoop(emr, "cat worker_ip_file"))
        given = ("--recipe", "mxnet", "-n", "2", "-s", "1", "-H", "hosts")
        one_thread = ("--env-worker", "OMP_NUM_THREADS:1", "--env-server", "OMP_NUM_THREADS:1")
        training = ("train_cifar10.py", "--network", "resnet", "--kv-store", "dist_device_sync", "--num-epochs", "1")
        little = ("--images", "96", "--batch-size", "16", "--disp-batches", "1")
        job = example.phalanx("launch", *given, *one_thread, "python", *training, *little, timeout_s=MADE_WITHIN_S)
        trained = re.findall(r"^\[worker (\d)\] .*Train-accuracy=0\.\d+", job.stdout, re.M)
        assert sorted(trained) == ["0", "1"], job.stdout
        assert {*re.findall(r"^\[worker (\d)\] .*Speed: [\d.]+ samples/sec", job.stdout, re.M)} == {"0", "1"}
        assert is_proven(job.stderr, 3)

    def test_tensorflows_scripts_run_on_their_hosts(self, emr):
        """`generate_trainer.py`, then `ssh $host "bash $host.sh"`."""
        example = with_environments(emr, "tensorflow_fashion_mnist")
        example.phalanx("recipes", "--make", "tensorflow", timeout_s=MADE_WITHIN_S)
        example.phalanx("put", ".", "tf")
        where = ("--trainer_script_dir", "/efs/tf", "--training_script", "/efs/tf/train_flags.py")
        chosen = ("--recipe", "tensorflow", "--worker_count", "2", "--worker_gpu_count", "1")
        training = ("--batch_size", "128", "--train_dir=/efs/tf/train", "--max_steps", "40")
        made = example.phalanx("tf-scripts", *where, *chosen, *training).stdout.split()
        assert made == [f"/efs/tf/deeplearning-worker{number}.sh" for number in (1, 2)]
        two = "head -n 2 $DEEPLEARNING_WORKERS_PATH > /efs/tf/hosts"
        emr.on("head", f'{two}; while read -u 10 host; do ssh $host "bash /efs/tf/$host.sh" ; done 10</efs/tf/hosts')
        ended = "cat /efs/tf/logs/worker*.exit 2>/dev/null || true"
        until(lambda: emr.on("head", ended) == "0\n" * 2, "two workers end", MADE_WITHIN_S)
        logs = emr.on("head", "cat /efs/tf/logs/worker[01]; ls /efs/tf/train")
        assert "worker 0 has finished" in logs and "worker 1 has finished" in logs and "model.ckpt-" in logs
        until(lambda: "train_flags" not in emr.on("worker2", "ps -eo args"), "the servers end")


def with_environments(emr: Terminal, example: str) -> Terminal:
    """Return a copy of an example, on a cluster with the environments that earlier tests have made."""
    MADE.mkdir(exist_ok=True)
    link_complete(MADE, environments_of(emr))
    return emr.with_example(example)
