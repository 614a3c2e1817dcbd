"""The seeds' own trainings, on nodes that have neither MPI nor pip when they boot."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from full_systems import IMAGE, a_full_cluster
from terminals import ONE_THREAD, Terminal
from verdicts import is_proven

pytestmark = pytest.mark.full_os

FIRST_USE_S = 900
# Their Python suits neither recipe: uv brings another one, from where python-build-standalone publishes them.
OF_OTHER_PYTHONS = ("ubuntu-24.04", "debian-11")
PYTHONS = ("github.com", 443)
MIRROR = "/efs/mirror"
# As a user behind a firewall does it.
OWN_MIRROR = f"""boot: |
  mkdir -p /etc/uv
  echo 'python-downloads-json-url = "file://{MIRROR}/downloads.json"' > /etc/uv/uv.toml
"""


@pytest.fixture(scope="module")
def terminal(tmp_path_factory) -> Iterator[Terminal]:
    mirror = None if IMAGE not in OF_OTHER_PYTHONS or is_reached(*PYTHONS) else tmp_path_factory.mktemp("mirror")
    if mirror:
        make_mirror(mirror)
    with a_full_cluster("training", 2, OWN_MIRROR if mirror else "") as terminal:
        if mirror:
            terminal.phalanx("put", str(mirror), MIRROR)
        yield terminal


def is_reached(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), 10).close()
    except OSError:
        return False
    return True


def make_mirror(place: Path) -> None:
    """Compile a Python, unless an earlier run did, and write it and uv's list of it."""
    program = Path(__file__).parents[2] / "scripts/python-mirror"
    subprocess.run([str(program), str(place), f"file://{MIRROR}"], check=True)
    print(f"figure: Python for the trainings: compiled by {program.name}, as {PYTHONS[0]} can't be reached")


def test_chainermn_trains_mnist(terminal):
    example = terminal.with_example("chainermn_mnist")
    arguments = ("--recipe", "chainermn", *ONE_THREAD, "-n", "2", "-N", "1", "--", "python", "train_mnist.py")
    done = example.phalanx("run", *arguments, "-e", "2", "-u", "100", "--at-least", "0.9", timeout_s=FIRST_USE_S)
    assert "[0] Num process (COMM_WORLD): 2" in done.stdout and is_proven(done.stderr, 2)


def test_mxnets_parameter_server_trains_mnist(terminal):
    example = terminal.with_example("mxnet_mnist")
    arguments = ("--recipe", "mxnet", "--launcher", "dmlc", "-n", "2", "--servers", "1", *ONE_THREAD)
    training = ("python", "train_mnist.py", "--kv-store", "dist_sync", "--num-epochs", "1")
    done = example.phalanx("run", *arguments, "--", *training, timeout_s=FIRST_USE_S)
    assert done.stdout.count("test accuracy 0.") >= 2
