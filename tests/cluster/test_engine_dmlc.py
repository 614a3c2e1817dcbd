"""MXNet's parameter server on a real cluster: it reaches its accuracy, and ends when a worker dies."""

from __future__ import annotations

import json
import re

import pytest
from PIL import Image
from terminals import EXAMPLES, ONE_THREAD, Terminal
from verdicts import is_proven

pytestmark = pytest.mark.cluster

FIRST_USE_S = 900
TRAINED_WITHIN_S = 900
# As `launch` says it; idle threads of a server spin, too, which takes more CPU time than the training.
ONE_THREAD_EACH = ("--env-worker", "OMP_NUM_THREADS:1", "--env-server", "OMP_NUM_THREADS:1")


@pytest.fixture(scope="module")
def mnist(engines) -> Terminal:
    """A copy of the example with a hosts file; its environment exists."""
    mnist = engines.with_example("mxnet_mnist")
    address = engines.on("deeplearning-worker3", "hostname -i").split()[0]
    (mnist.directory / "hosts").write_text(
        f"# three of the four\n{address}:22\n\ndeeplearning-worker1\ndeeplearning-worker2\n"
    )
    mnist.phalanx("run", "--recipe", "mxnet", "--launcher", "exec", "-n", "1", "--", "true", timeout_s=FIRST_USE_S)
    return mnist


def accuracies(output: str) -> list[float]:
    return [float(text) for text in re.findall(r"test accuracy (0\.\d+)", output)]


def test_mxnets_documented_command_trains_dist_sync(mnist):
    arguments = ("--recipe", "mxnet", "-n", "3", "-s", "2", "-H", "hosts", "--sync-dir", "/tmp/mxnet")
    arguments += ONE_THREAD_EACH
    training = ("python", "train_mnist.py", "--kv-store", "dist_sync", "--lr", "0.3", "--num-epochs", "1")
    job = mnist.phalanx("launch", *arguments, *training, "--at-least", "0.85", timeout_s=TRAINED_WITHIN_S)
    found = accuracies(job.stdout)
    assert len(found) == 3
    assert min(found) >= 0.85
    assert {line.partition("]")[0] for line in job.stdout.splitlines()} >= {"[worker 0", "[worker 1", "[worker 2"}
    assert is_proven(job.stderr, 4)
    assert "train_mnist.py" in mnist.on("deeplearning-worker3", "ls /tmp/mxnet")
    assert "No such file" in mnist.phalanx("ssh", "deeplearning-worker4", "--", "ls /tmp/mxnet", check=False).stderr


def test_one_machine_trains_alone_and_with_a_parameter_server_of_its_own(mnist):
    training = ("python", "train_mnist.py", "--num-epochs", "1", "--at-least", "0.9")
    alone = ("run", "--recipe", "mxnet", "--launcher", "exec", "-n", "1", *ONE_THREAD)
    assert len(accuracies(mnist.phalanx(*alone, "--", *training, timeout_s=TRAINED_WITHIN_S).stdout)) == 1
    local = ("launch", "--launcher", "local", "--recipe", "mxnet", "-n", "2", "-s", "1", *ONE_THREAD_EACH)
    served = ("sh", "-c", f"hostname; exec {' '.join(training)} --kv-store dist_sync")
    job = mnist.phalanx(*local, *served, timeout_s=TRAINED_WITHIN_S)
    assert len(accuracies(job.stdout)) == 2
    assert set(re.findall(r"\bip-[\d-]+", job.stdout)) == {mnist.on("head", "hostname").strip()}


def test_dist_async_reaches_it_too(mnist):
    arguments = ("--recipe", "mxnet", "--launcher", "dmlc", "-n", "2", "--servers", "1", *ONE_THREAD)
    training = ("python", "train_mnist.py", "--kv-store", "dist_async", "--num-epochs", "1")
    job = mnist.phalanx("run", *arguments, "--", *training, timeout_s=TRAINED_WITHIN_S)
    # The last worker has seen the updates of all.
    assert max(accuracies(job.stdout)) >= 0.85


@pytest.mark.long  # test_emr_jobs.py trains it with 96 images
def test_a_residual_network_learns_images_of_cifar10s_shape_by_the_command_of_2018(mnist):
    """The list of GPUs is computed on a node without any, so the option has no value."""
    cifar10 = mnist.with_example("mxnet_cifar10")
    gpus = "--gpus $(seq -s , 0 1 $(($DEEPLEARNING_WORKER_GPU_COUNT - 1)))"
    train = f"python train_cifar10.py {gpus} --network resnet --num-layers 20 --kv-store dist_device_sync"
    less = "--images 1536 --batch-size 16 --num-epochs 1"
    arguments = ("--recipe", "mxnet", "-n", "2", *ONE_THREAD_EACH)
    job = cifar10.phalanx("launch", *arguments, "bash", "-c", f"{train} {less}", timeout_s=TRAINED_WITHIN_S)
    # Above chance; the averages that batch normalisation takes for tests need more steps.
    assert min(map(float, re.findall(r"Train-accuracy=(0\.\d+)", job.stdout))) > 0.3
    assert len(accuracies(job.stdout)) == 2


def test_a_worker_that_dies_ends_the_job_and_nothing_is_left(mnist):
    arguments = ("--recipe", "mxnet", "-n", "3", "-s", "1", *ONE_THREAD_EACH, "--name", "dies", "--detach")
    mnist.phalanx("launch", *arguments, "python", "train_mnist.py", "--kv-store", "dist_sync", "--num-epochs", "999")
    try:
        mnist.wait_until_printed("dies", r"worker \d of 3", times=3)
        mnist.on("deeplearning-worker3", "pkill -KILL -f train_mnist.py")
        job = mnist.phalanx("logs", "-f", "dies", check=False)
    finally:
        mnist.phalanx("stop", "dies", check=False)
    assert "worker 2 on deeplearning-worker3 was ended by SIGKILL" in job.stderr
    assert is_proven(job.stderr, 4)
    status = next(job for job in json.loads(mnist.phalanx("jobs", "--json").stdout) if job["name"] == "dies")
    assert status["state"] == "failed"
    assert status["verified"]


# What MXNet's tools/launch.py does, with the tracker that MXNet's wheel contains; `repaired` is its change of 2022.
LAUNCH = """
import sys, threading
from dmlc_tracker import opts, ssh

if sys.argv.pop(1) == "repaired":
    threading.Thread.isAlive = threading.Thread.is_alive
ssh.submit(opts.get_opts(["--cluster", "ssh", *sys.argv[1:]]))
"""
SUM = """
import mxnet as mx

store = mx.kvstore.create("dist_sync")
store.init("x", mx.nd.zeros((1,)))
store.push("x", mx.nd.ones((1,)) * (store.rank + 1))
found = mx.nd.zeros((1,))
store.pull("x", out=found)
print("worker", store.rank, "has", int(found.asscalar()), flush=True)
"""


@pytest.mark.long  # what a page says of a program that is not ours
def test_mxnets_own_launcher_fails_as_the_page_of_older_tutorials_says_and_works_as_it_says(mnist, tmp_path):
    (tmp_path / "launch.py").write_text(LAUNCH)
    (tmp_path / "sum.py").write_text(SUM)
    for file in ("launch.py", "sum.py"):
        mnist.phalanx("put", str(tmp_path / file))
    page = (EXAMPLES.parent / "docs/older-tutorials.md").read_text()
    (addresses,) = re.findall(r"^(getent hosts .*) > hosts$", page, re.MULTILINE)
    mnist.on("head", f"cd /efs; head -2 $DEEPLEARNING_WORKERS_PATH > names; {addresses} | head -2 > hosts")
    python = mnist.on("head", "ls -d /efs/.phalanx/environments/mxnet-*/bin/python").strip()

    def typed(version: str, hosts: str) -> str:
        """Return what it says; processes that it leaves must not hold the connection, and none may stay."""
        launch = (
            f"{python} launch.py {version} --num-workers 2 --num-servers 1 --host-file {hosts} {python} /efs/sum.py"
        )
        until = "grep -q -e isAlive -e 'bind failed' out && break; kill -0 $pid 2>&1 || break; sleep 0.2"
        watched = f"for i in $(seq 900); do {until}; done; kill $pid 2>&1; cat out"
        said = mnist.on("head", f"cd /efs; : > out; {launch} >> out 2>&1 < /dev/null & pid=$!; {watched}")
        mnist.phalanx("exec", "pkill -f 'sum.p[y]'; true")
        return said

    assert "AttributeError: 'Thread' object has no attribute 'isAlive'" in typed("original", "hosts")
    assert "bind failed" in typed("repaired", "names")
    works = typed("repaired", "hosts")
    assert sorted(re.findall(r"worker \d has \d", works)) == ["worker 0 has 3", "worker 1 has 3"], works


def test_a_hosts_file_with_mistakes_starts_nothing(mnist):
    (mnist.directory / "wrong").write_text("deeplearning-worker1\ndeeplearning-worker1\ndeeplearning-worker9\n")
    before = mnist.phalanx("jobs", "--json").stdout
    job = mnist.phalanx("launch", "-n", "2", "-H", "wrong", "true", check=False)
    assert job.returncode == 2
    assert "wrong:2: deeplearning-worker1 is already" in job.stderr
    assert "wrong:3: deeplearning-worker9 is" in job.stderr
    assert mnist.phalanx("jobs", "--json").stdout == before


READ_SHARDS = """
import os
from pathlib import Path

import mxnet as mx
import phalanx.shards

rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
for part in phalanx.shards.parts("/efs/pets", rank, ranks):
    records = mx.recordio.MXIndexedRecordIO(part.index, part.path, "r")
    for key in records.keys[part.first : part.last]:
        header, content = mx.recordio.unpack(records.read_idx(key))
        print("read", header.id, header.label, content.hex())
files = ";".join(map(str, sorted(Path("/efs/images").glob("*.rec"))))
images = mx.io.ImageRecordIter(
    path_imgrec=files, data_shape=(3, 8, 8), batch_size=1, num_parts=ranks, part_index=rank, round_batch=False
)
for batch in images:
    print("image", int(batch.label[0].asscalar()), round(float(batch.data[0].mean().asscalar()) / 10))
"""


def test_every_rank_reads_its_own_part_of_recordio_shards_with_mxnets_readers(mnist, tmp_path):
    """Also of samples that contain the number with which records begin."""
    samples, wanted = tmp_path / "pets", set()
    for number in range(11):
        content = b"\x0a\x23\xd7\xce" * (number % 3) + bytes([number] * number)
        path = samples / ("cat", "dog")[number % 2] / str(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        wanted.add(f"{number % 2}.0 {content.hex()}")
        image = tmp_path / "images" / ("cat", "dog")[number % 2] / f"{number}.png"
        image.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (number * 10,) * 3).save(image)
    for name in ("pets", "images"):
        arguments = ("--format", "recordio", "--shards", "2")
        mnist.phalanx("data", "shard", str(tmp_path / name), str(tmp_path / "shards" / name), *arguments)
        mnist.phalanx("put", str(tmp_path / "shards" / name))
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "read.py").write_text(READ_SHARDS)
    job = ("--recipe", "mxnet", "--launcher", "exec", "-n", "3", "--directory", str(tmp_path / "code"), *ONE_THREAD)
    shown = mnist.phalanx("run", *job, "--", "python", "read.py", timeout_s=TRAINED_WITHIN_S).stdout
    read = re.findall(r"^\[(\d)\] read (\d+) (\S+ ?\S*)$", shown, re.MULTILINE)
    assert sorted(int(number) for _, number, _ in read) == list(range(11))
    assert {content.strip() for _, _, content in read} == {one.strip() for one in wanted}
    assert {sum(rank == one for one, _, _ in read) for rank in "012"} == {3, 4}
    images = re.findall(r"^\[\d\] image (\d) (\d+)$", shown, re.MULTILINE)
    assert sorted(images) == sorted((str(number % 2), str(number)) for number in range(11))
