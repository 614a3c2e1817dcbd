"""The seeds' own trainings, on nodes that have neither MPI nor pip when they boot."""

from __future__ import annotations

import hashlib
import json
import platform
import socket
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from full_systems import IMAGE, a_full_cluster

from conftest import ONE_THREAD, Terminal

pytestmark = pytest.mark.full_os

FIRST_USE_S = 900
# Their Python suits neither recipe: uv brings another one, from where python-build-standalone publishes them.
OF_OTHER_PYTHONS = ("ubuntu-24.04", "debian-11")
PYTHONS = ("github.com", 443)
SUITABLE = ((3, 10), (3, 11))
UNUSED = ("test", "site-packages", "idlelib")


@pytest.fixture(scope="module")
def terminal() -> Iterator[Terminal]:
    with a_full_cluster("training", 2) as terminal:
        yield terminal


@pytest.fixture(scope="module")
def another_python(terminal, tmp_path_factory) -> tuple[str, ...]:
    """Return the options with which uv finds a Python: none, or this machine's own in a mirror on the cluster."""
    if IMAGE not in OF_OTHER_PYTHONS or is_reached(*PYTHONS):
        return ()
    if sys.version_info[:2] not in SUITABLE:
        pytest.skip(f"{IMAGE} needs another Python, {PYTHONS[0]} can't be reached, and this machine's is no substitute")
    place = tmp_path_factory.mktemp("mirror")
    make_mirror(place, "file:///efs/mirror")
    terminal.phalanx("put", str(place), "/efs/mirror")
    return ("--build-env", "UV_PYTHON_DOWNLOADS_JSON_URL=file:///efs/mirror/downloads.json")


def is_reached(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), 10).close()
    except OSError:
        return False
    return True


def make_mirror(place: Path, url: str) -> None:
    """Write this machine's Python as an archive, and what uv must know of it."""
    with tarfile.open(place / "cpython.tar.gz", "w:gz", compresslevel=1) as archive:
        for name in ("bin", "lib", "include"):
            archive.add(Path(sys.base_prefix, name), f"python/{name}", filter=only_what_is_used)
    major, minor, patch = sys.version_info[:3]
    version = {"major": major, "minor": minor, "patch": patch, "prerelease": "", "variant": None, "build": "1"}
    one = {
        **version,
        "name": "cpython",
        "arch": {"family": platform.machine(), "variant": None},
        "os": "linux",
        "libc": "gnu",
        "url": f"{url}/cpython.tar.gz",
        "sha256": hashlib.sha256((place / "cpython.tar.gz").read_bytes()).hexdigest(),
    }
    key = f"cpython-{major}.{minor}.{patch}-linux-{platform.machine()}-gnu"
    (place / "downloads.json").write_text(json.dumps({key: one}))


def only_what_is_used(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if Path(entry.name).name in UNUSED or entry.name.endswith(".a") else entry


def test_chainermn_trains_mnist(terminal, another_python):
    example = terminal.with_example("chainermn_mnist")
    arguments = ("--recipe", "chainermn", *another_python, *ONE_THREAD, "-n", "2", "-N", "1", "--")
    training = ("python", "train_mnist.py", "-e", "2", "-u", "100", "--at-least", "0.9")
    done = example.phalanx("run", *arguments, *training, timeout_s=FIRST_USE_S)
    assert "[0] Num process (COMM_WORLD): 2" in done.stdout and "no process of it is left on 2 nodes" in done.stderr


def test_mxnets_parameter_server_trains_mnist(terminal, another_python):
    example = terminal.with_example("mxnet_mnist")
    arguments = ("--recipe", "mxnet", *another_python, "--launcher", "dmlc", "-n", "2", "--servers", "1", *ONE_THREAD)
    training = ("python", "train_mnist.py", "--kv-store", "dist_sync", "--num-epochs", "1")
    done = example.phalanx("run", *arguments, "--", *training, timeout_s=FIRST_USE_S)
    assert done.stdout.count("test accuracy 0.") >= 2
