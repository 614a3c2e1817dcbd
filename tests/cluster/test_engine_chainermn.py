"""ChainerMN's training of MNIST on three nodes: its table, and its accuracy on the test set."""

from __future__ import annotations

import re
import subprocess

import pytest
from terminals import EXAMPLES, ONE_THREAD, Terminal
from verdicts import is_proven

pytestmark = pytest.mark.cluster

FIRST_USE_S = 900


@pytest.mark.parametrize(
    ("epochs", "batch", "units", "least"), [(1, 200, 50, 0.8), pytest.param(2, 50, 100, 0.93, marks=pytest.mark.long)]
)
def test_the_training_prints_chainermns_table_and_learns(engines, epochs, batch, units, least):
    job = ("--directory", str(EXAMPLES / "chainermn_mnist"), "--recipe", "chainermn", *ONE_THREAD, "-n", "3", "-N", "1")
    training = ("train_mnist.py", "-e", str(epochs), "-b", str(batch), "-u", str(units), "--at-least", str(least))
    done = engines.phalanx("run", *job, "--", "python", *training, timeout_s=FIRST_USE_S)
    shown = [line.replace("\x1b[J", "") for line in re.findall(r"^\[0\] (.*)$", done.stdout, re.MULTILINE)]
    assert shown[:8] == [
        "==========================================",
        "Num process (COMM_WORLD): 3",
        "Using naive communicator",
        f"Num unit: {units}",
        f"Num Minibatch-size: {batch}",
        f"Num epoch: {epochs}",
        "==========================================",
        "epoch       main/loss   validation/main/loss  main/accuracy  validation/main/accuracy  elapsed_time",
    ]
    accuracies = [float(row.split()[4]) for row in shown if re.match(r"[12] ", row)]
    assert len(accuracies) == epochs
    assert accuracies[-1] >= least
    assert is_proven(done.stderr, 4)


LIKE_UPSTREAM = """
import gzip
import sys
import chainer
import chainermn
comm = chainermn.create_communicator("naive")
if comm.rank == 0:
    train, test = getattr(chainer.datasets, sys.argv[1])()
    print(len(train), len(test), len(gzip.open("data/train-labels-idx1-ubyte.gz").read()))
else:
    train = None
train = chainermn.scatter_dataset(train, comm)
print("has", len(train))
"""


@pytest.fixture(scope="module")
def fashion(engines) -> Terminal:
    """The cluster with Fashion-MNIST, and a script that reads it as upstream's examples read MNIST."""
    (engines.directory / "like_upstream.py").write_text(LIKE_UPSTREAM)
    fetched = engines.phalanx("data", "fetch", "fashion-mnist", timeout_s=FIRST_USE_S)
    assert "[0] fashion-mnist is in /efs/datasets" in fetched.stdout
    return engines


def like_upstream(fashion: Terminal, function: str) -> subprocess.CompletedProcess[str]:
    arguments = ("--recipe", "chainermn", "--link", "data=datasets/fashion-mnist", "-n", "2", "-N", "1", "--")
    return fashion.phalanx(
        "run", *arguments, "python", "like_upstream.py", function, timeout_s=FIRST_USE_S, check=False
    )


def test_scripts_find_a_fetched_data_set_where_they_look_for_it(fashion):
    done = like_upstream(fashion, "get_fashion_mnist")
    assert "[0] 60000 10000 60008" in done.stdout
    assert sorted(re.findall(r"\[(\d)\] has 30000", done.stdout)) == ["0", "1"]


def test_a_rank_that_fails_before_the_others_have_data_ends_the_job_with_its_own_error(fashion):
    done = like_upstream(fashion, "get_nothing")
    assert done.returncode == 1
    assert "AttributeError: module 'chainer.datasets' has no attribute 'get_nothing'\n" in done.stderr
    assert is_proven(done.stderr, 4)


def test_the_recipes_variables_reach_ranks_of_a_typed_mpiexec(engines):
    arguments = ("--recipe", "chainermn", "--launcher", "exec", "-n", "1", "--", "true")
    engines.phalanx("run", *arguments, timeout_s=FIRST_USE_S)
    environment = engines.on("deeplearning-worker1", "ls -d /efs/.phalanx/environments/chainermn-*/").split()[0]
    typed = f". {environment}/bin/activate && mpiexec -n 4 -N 1 printenv CHAINER_DATASET_ROOT"
    assert engines.on("deeplearning-worker1", typed).split() == ["/efs/datasets/chainer"] * 4


def test_a_link_that_leads_nowhere_is_refused_before_anything_starts(engines):
    arguments = ("run", "--link", "data=datasets/nothing", "--", "true")
    refused = engines.phalanx(*arguments, check=False)
    assert refused.returncode == 2
    assert "no /efs/datasets/nothing on" in refused.stderr
