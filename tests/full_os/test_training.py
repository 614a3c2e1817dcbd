"""The seeds' own trainings, on nodes that have neither MPI nor pip when they boot."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from full_systems import IMAGE, a_full_cluster

from conftest import ONE_THREAD, Terminal

pytestmark = pytest.mark.full_os

FIRST_USE_S = 900
# Their Python suits neither recipe: uv brings another one, from where python-build-standalone publishes them.
OF_OTHER_PYTHONS = ("ubuntu-24.04", "debian-11")
PYTHONS = ("github.com", 443)


@pytest.fixture(scope="module")
def terminal() -> Iterator[Terminal]:
    if IMAGE in OF_OTHER_PYTHONS:
        try:
            socket.create_connection(PYTHONS, 10).close()
        except OSError as problem:
            pytest.skip(f"{IMAGE} needs another Python, and {PYTHONS[0]} can't be reached: {problem}")
    with a_full_cluster("training", 2) as terminal:
        yield terminal


def test_chainermn_trains_mnist(terminal):
    example = terminal.with_example("chainermn_mnist")
    arguments = ("--recipe", "chainermn", *ONE_THREAD, "-n", "2", "-N", "1", "--", "python", "train_mnist.py")
    done = example.phalanx("run", *arguments, "-e", "2", "-u", "100", "--at-least", "0.9", timeout_s=FIRST_USE_S)
    assert "[0] Num process (COMM_WORLD): 2" in done.stdout and "no process of it is left on 2 nodes" in done.stderr


def test_mxnets_parameter_server_trains_mnist(terminal):
    example = terminal.with_example("mxnet_mnist")
    arguments = ("--recipe", "mxnet", "--launcher", "dmlc", "-n", "2", "--servers", "1", *ONE_THREAD)
    training = ("python", "train_mnist.py", "--kv-store", "dist_sync", "--num-epochs", "1")
    done = example.phalanx("run", *arguments, "--", *training, timeout_s=FIRST_USE_S)
    assert done.stdout.count("test accuracy 0.") >= 2
