"""Data sets as `phalanx data fetch` lays them: from a server of the test, by the program that runs on the head."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import pickle
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from phalanx.datasets import pickles
from phalanx.jobs.fetch_data import fetch_job

IDX = {
    "train-images-idx3-ubyte": pickles.idx((6, 2, 3), bytes(range(36))),
    "train-labels-idx1-ubyte": pickles.idx((6,), bytes(range(6))),
    "t10k-images-idx3-ubyte": pickles.idx((2, 2, 3), bytes(range(100, 112))),
    "t10k-labels-idx1-ubyte": pickles.idx((2,), bytes((7, 8))),
}


class Server:
    """A web server with these files; `cut` names those that it sends only half of, so many times."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.cut: dict[str, int] = {}
        self.requests: list[str] = []

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        name = handler.path.lstrip("/")
        self.requests.append(name)
        if name not in self.files:
            handler.send_error(404)
            return
        content = self.files[name]
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        self.cut[name] = self.cut.get(name, 0) - 1
        handler.wfile.write(content if self.cut[name] < 0 else content[: len(content) // 2])


@pytest.fixture
def server() -> Iterator[Server]:
    served = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.answer(self)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as web:
        thread = threading.Thread(target=web.serve_forever)
        thread.start()
        served.url = f"http://127.0.0.1:{web.server_port}/"
        yield served
        web.shutdown()
        thread.join()


class Program:
    """The code that is sent to the head, with another catalog."""

    def __init__(self, directory: Path) -> None:
        self.job = fetch_job(["mnist"], directory / "code", str(directory / "efs"))
        self.root = directory / "efs" / "datasets"

    def run(self, catalog: dict, *names: str) -> subprocess.CompletedProcess[str]:
        (Path(self.job.directory) / "catalog.json").write_text(json.dumps(catalog))
        argv = [sys.executable, *self.job.command[1:3], str(self.root), *names]
        quiet = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run(argv, cwd=self.job.directory, env=quiet, capture_output=True, text=True, timeout=120)


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path)


def digits(*sources: str) -> dict:
    files = {name: hashlib.sha256(content).hexdigest() for name, content in IDX.items()}
    own = {"kind": "idx", "files": files, "sources": list(sources)}
    return {"digits": {**own, "torchvision": "Digits/raw", "chainer": "pfnet/chainer/digits"}}


def serve(server: Server) -> None:
    server.files |= {f"{name}.gz": gzip.compress(content) for name, content in IDX.items()}


def test_each_library_finds_its_form(program: Program, server: Server) -> None:
    serve(server)
    done = program.run(digits(server.url), "digits")
    assert (done.returncode, done.stderr) == (0, "")
    train = np.load(program.root / "chainer/pfnet/chainer/digits/train.npz")
    assert train["x"].tolist() == np.arange(36).reshape(6, 6).tolist()
    assert (train["x"].dtype, train["y"].tolist()) == (np.uint8, [0, 1, 2, 3, 4, 5])
    assert np.load(program.root / "chainer/pfnet/chainer/digits/test.npz")["y"].tolist() == [7, 8]
    for name, content in IDX.items():
        assert gzip.decompress((program.root / "digits" / f"{name}.gz").read_bytes()) == content
        assert (program.root / "Digits/raw" / name).read_bytes() == content


def test_what_is_there_is_not_fetched_again_and_what_is_incomplete_is(program: Program, server: Server) -> None:
    serve(server)
    program.run(digits(server.url), "digits")
    asked = len(server.requests)
    again = program.run(digits(server.url), "digits")
    assert again.stdout == f"digits is already in {program.root}\n"
    assert len(server.requests) == asked
    (program.root / "digits" / ".complete").unlink()
    assert program.run(digits(server.url), "digits").returncode == 0
    assert len(server.requests) == 2 * asked


def test_an_answer_that_is_cut_short_is_requested_again(program: Program, server: Server) -> None:
    serve(server)
    server.cut["train-images-idx3-ubyte.gz"] = 1
    assert program.run(digits(server.url), "digits").returncode == 0
    assert server.requests.count("train-images-idx3-ubyte.gz") == 2


def test_a_source_with_another_content_is_passed_over(program: Program, server: Server) -> None:
    serve(server)
    server.files |= {f"other/{name}.gz": gzip.compress(b"\0" * 20) for name in IDX}
    done = program.run(digits(f"{server.url}other/", server.url), "digits")
    assert done.returncode == 0
    assert "damaged, or another file" in done.stdout


def test_without_a_source_nothing_is_left(program: Program, server: Server) -> None:
    done = program.run(digits(f"{server.url}gone/", "file:///nowhere/"), "digits")
    assert done.returncode == 1
    assert "no source has digits:" in done.stderr
    assert f"{server.url}gone/train-images-idx3-ubyte.gz: Not Found" in done.stderr
    assert "file:///nowhere/train-images-idx3-ubyte.gz" in done.stderr
    assert [path.name for path in program.root.iterdir()] == [".digits.lock"]


def cifar10(batch: object) -> bytes:
    """Pack an archive like that of CIFAR-10's authors, with this in every batch."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "batches.meta"):
            content = pickle.dumps(batch, protocol=3)
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def photographs(archive: bytes, source: str) -> dict:
    own = {"kind": "cifar10", "files": {"cifar-10-python.tar.gz": hashlib.sha256(archive).hexdigest()}}
    places = {"torchvision": "cifar-10-batches-py", "chainer": "pfnet/chainer/cifar"}
    return {"cifar10": {**own, **places, "sources": [source]}}


def test_cifar10_becomes_chainers_arrays_and_torchvisions_batches(program: Program, server: Server) -> None:
    images = np.arange(2 * 3072, dtype=np.uint8).reshape(2, 3072)
    server.files["cifar-10-python.tar.gz"] = archive = cifar10({b"data": images, b"labels": [3, 9]})
    done = program.run(photographs(archive, server.url), "cifar10")
    assert (done.returncode, done.stderr) == (0, "")
    arrays = np.load(program.root / "chainer/pfnet/chainer/cifar/cifar-10.npz")
    assert arrays["train_x"].tolist() == np.concatenate([images] * 5).tolist()
    assert arrays["train_y"].tolist() == [3, 9] * 5
    assert (arrays["test_x"].tolist(), arrays["test_y"].tolist()) == (images.tolist(), [3, 9])
    batches = sorted(path.name for path in (program.root / "cifar-10-batches-py").iterdir())
    assert batches == ["batches.meta", *(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    assert (program.root / "cifar10" / "cifar-10-python.tar.gz").read_bytes() == archive


def test_a_pickle_that_names_a_program_runs_nothing(program: Program, server: Server, tmp_path: Path) -> None:
    class Hostile:
        def __reduce__(self) -> tuple:
            return os.system, (f"touch {tmp_path}/ran",)

    server.files["cifar-10-python.tar.gz"] = archive = cifar10(Hostile())
    done = program.run(photographs(archive, server.url), "cifar10")
    assert done.returncode == 1
    assert "not part of an" in done.stderr
    assert not (tmp_path / "ran").exists()
