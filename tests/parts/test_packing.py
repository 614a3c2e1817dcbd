"""`phalanx data shard` and `verify`, and what reads the shards: phalanx.shards, WebDataset, tar."""

from __future__ import annotations

import csv
import gc
import hashlib
import io
import json
import os
import random
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from error_codes import raises_code

import phalanx.shards as shards
from phalanx.packing import pack

COUNT = 23
CLASSES = ("cat", "dog")


@pytest.fixture
def pets(tmp_path) -> Path:
    """A folder with two classes, of 23 files with sizes that are no multiple of anything, and one file beside them."""
    chance = random.Random(1)
    for number in range(COUNT):
        path = tmp_path / "pets" / CLASSES[number % 2] / "sub" / f"{number}.v1.JPG"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(chance.randbytes(number * 97))
    (tmp_path / "pets" / "README").write_text("of no class")
    return tmp_path / "pets"


class Done(NamedTuple):
    """How a command ended, and what it printed."""

    status: int
    out: str
    err: str


@pytest.fixture
def data(phalanx) -> Callable[..., Done]:
    """`phalanx data …`."""
    return lambda *arguments: Done(phalanx("data", *map(str, arguments)), phalanx.out, phalanx.err)


@pytest.fixture
def packed(data) -> Callable[..., dict[str, Any]]:
    """`phalanx data shard SOURCE DIRECTORY --json …`, which succeeds."""

    def pack(*arguments: object) -> dict[str, Any]:
        done = data("shard", *arguments, "--json")
        assert done.status == 0, done.err
        return json.loads(done.out)

    return pack


def digests(directory: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(directory.iterdir())}


def contents(pets: Path) -> list[tuple[bytes, bytes]]:
    return sorted((b"%d" % CLASSES.index(path.parents[1].name), path.read_bytes()) for path in pets.rglob("*.JPG"))


def test_a_folder_becomes_even_shards_whose_labels_are_its_classes(packed, pets, tmp_path):
    result = packed(pets, tmp_path / "out", "--shards", 5)
    assert (result["samples"], result["shards"], result["classes"], result["left_out"]) == (COUNT, 5, [*CLASSES], 1)
    assert {shard.samples for shard in shards.load(tmp_path / "out")} == {4, 5}
    read = list(shards.read(tmp_path / "out"))
    assert sorted((one["cls"], one["jpg"]) for one in read) == contents(pets)
    # Shuffled, as sub-folders in their order would be one class after another.
    assert len({one["cls"] for one in read[: COUNT // 3]}) == 2
    with tarfile.open(tmp_path / "out" / "shard-00000.tar") as archive:
        names = archive.getnames()
    listed = [line.split("\t") for line in (tmp_path / "out" / "shard-00000.lst").read_text().splitlines()]
    assert names == [f"{int(n):08}.{ext}" for n, _, _ in listed for ext in ("jpg", "cls")]
    assert all((pets / name).exists() and float(label) == CLASSES.index(name[:3]) for _, label, name in listed)


@pytest.mark.parametrize("ranks", [1, 2, 3, 7, 40])
def test_ranks_and_their_workers_read_every_sample_once_in_every_epoch(packed, pets, tmp_path, ranks):
    packed(pets, tmp_path / "out", "--shards", 5)
    orders = []
    for epoch in range(2):
        read = [list(shards.read(tmp_path / "out", rank, ranks, epoch)) for rank in range(ranks)]
        orders.append([one["__key__"] for of_rank in read for one in of_rank])
        assert sorted(orders[-1]) == [f"{number:08}" for number in range(COUNT)]
        assert max(map(len, read)) - min(map(len, read)) <= 1
    assert orders[0] != orders[1]


def test_shards_are_read_from_wherever_a_function_opens_them(packed, pets, tmp_path):
    packed(pets, tmp_path / "out", "--shards", 5)

    def read(rank: int, most: int | None = None) -> list[dict[str, Any]]:
        def opened(url: str) -> io.BytesIO:
            content = (tmp_path / "out" / url.removeprefix("s3://bucket/pets/")).read_bytes()
            return io.BytesIO(content[:most] if url.endswith(".tar") else content)

        return list(shards.read("s3://bucket/pets", rank, 3, 1, opened))

    for rank in range(3):
        here = list(shards.read(tmp_path / "out", rank, 3, 1))
        assert [{**one, "__url__": ""} for one in read(rank)] == [{**one, "__url__": ""} for one in here]
        with raises_code("bad-shards", "s3://bucket/pets/shard-0000", "ended too early", kind=shards.ShardError):
            read(rank, 600)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # WebDataset closes no file itself
@pytest.mark.parametrize("workers", [0, 2])
def test_webdatasets_own_reader_and_its_pipeline_read_them(packed, pets, tmp_path, workers):
    import webdataset as wds

    packed(pets, tmp_path / "out", "--shards", 3)
    urls = [str(path) for path in sorted((tmp_path / "out").glob("shard-*.tar"))]
    own = wds.WebDataset(urls, shardshuffle=False, empty_check=False).decode().to_tuple("cls", "__key__")
    assert sorted(key for _, key in own) == [f"{number:08}" for number in range(COUNT)]
    seen = []
    for rank in range(2):
        samples = partial(shards.read, tmp_path / "out", rank, 2)
        pipeline = wds.DataPipeline(samples, wds.to_tuple("cls", "jpg"))
        seen += list(wds.WebLoader(pipeline, num_workers=workers, batch_size=None))
    assert sorted(map(tuple, seen)) == contents(pets)
    gc.collect()


def test_a_table_has_numbers_or_classes_and_paths_beside_it(packed, pets, tmp_path):
    names = sorted(path.relative_to(tmp_path).as_posix() for path in pets.rglob("*.JPG"))
    for label, written in (("0.5", "0.5"), ("3", None), ("é, x", None)):
        with (tmp_path / "labels.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("id", "label", "path"), *((n, label, name) for n, name in enumerate(names))])
        result = packed(tmp_path / "labels.csv", tmp_path / label)
        sample = next(shards.read(tmp_path / label))
        key, value = ("label.json", written.encode()) if written else ("cls", b"3" if label == "3" else b"0")
        assert sample[key] == value and result["classes"] == (["é, x"] if label == "é, x" else [])
    (tmp_path / "labels.lst").write_text("".join(f"{n}\t1\t2.5\t{name}\n" for n, name in enumerate(names)))
    packed(tmp_path / "labels.lst", tmp_path / "several")
    assert next(shards.read(tmp_path / "several"))["label.json"] == b"[1.0, 2.5]"


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("path,class\na,b\n", "has the columns path, class"),
        ("", "has the columns (none)"),
        ("path,label\n", "the table has no rows"),
        ("path,label\nx.jpg,1\ny.jpg,2\n", "'x.jpg' is missing; 'y.jpg' is missing"),
        ("path,label\nx.jpg,\n", "path x.jpg: no label"),
        ("path,label\n.,1\n", "'.' is not a file"),
    ],
)
def test_a_table_that_can_t_be_packed_is_refused_with_all_that_is_wrong(data, tmp_path, table, words):
    (tmp_path / "labels.csv").write_text(table)
    done = data("shard", tmp_path / "labels.csv", tmp_path / "out")
    assert done.status == 1 and words in done.err and not (tmp_path / "out").exists()


def test_what_is_no_source_is_refused(data, phalanx, tmp_path):
    (tmp_path / "labels.lst").write_text("0\t1\ta.jpg\n1 1 b.jpg\n")
    assert "line 2: not an index" in data("shard", tmp_path / "labels.lst", tmp_path / "out").err
    (tmp_path / "labels.lst").write_text("0\t1e39\ta.jpg\n")
    assert "line 1: not an index" in data("shard", tmp_path / "labels.lst", tmp_path / "out").err
    (tmp_path / "labels.txt").write_text("")
    for source, fact in ((tmp_path / "labels.txt", "nor a table"), (tmp_path, "no sub-folders")):
        assert data("shard", source, tmp_path / "out").status == 1
        phalanx.refused("bad-samples", source, fact)


def test_the_same_samples_give_the_same_bytes_and_another_seed_others(packed, pets, tmp_path):
    for name, *options in (("a",), ("b",), ("c", "--seed", 1), ("r", "--format", "recordio")):
        packed(pets, tmp_path / name, "--shards", 3, *options)
    a, b, c = (digests(tmp_path / name) for name in "abc")
    assert a == b and a.keys() == c.keys() and a["shard-00000.tar"] != c["shard-00000.tar"]
    assert set(digests(tmp_path / "r")) == {"shards.json"} | {
        f"shard-0000{n}.{extension}" for n in range(3) for extension in ("rec", "idx", "lst")
    }


def noted(directory):
    """Return how many shards the journal lists as complete."""
    journal = directory / pack.JOURNAL
    return max(0, len(journal.read_text().splitlines()) - 1) if journal.exists() else 0


def test_an_interrupt_right_after_a_shard_s_rename_is_gone_on_from(packed, data, pets, tmp_path, monkeypatch):
    own = os.replace

    def interrupted(*paths):
        own(*paths)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", interrupted)
        assert data("shard", pets, tmp_path / "out", "--shards", 5).status == 130
    packed(pets, tmp_path / "out", "--shards", 5)


def test_after_a_kill_the_same_command_goes_on_and_the_bytes_are_the_same(packed, data, pets, tmp_path):
    packed(pets, tmp_path / "whole", "--shards", 5)
    slow = "import phalanx.packing.pack as p, sys, time; own = p._content\n"
    slow += "p._content = lambda sample: time.sleep(0.05) or own(sample)\n"
    slow += "from phalanx.cli import main; main()"
    arguments = ("data", "shard", str(pets), str(tmp_path / "out"), "--shards", "5")
    for signal_, status in ((9, -9), (2, 130)):
        process = subprocess.Popen([sys.executable, "-c", slow, *arguments], stderr=subprocess.DEVNULL)
        before, deadline = noted(tmp_path / "out"), time.monotonic() + 120
        while time.monotonic() < deadline and noted(tmp_path / "out") == before:
            time.sleep(0.02)
        process.send_signal(signal_)
        assert process.wait() == status
        assert not (tmp_path / "out" / "shards.json").exists()
    # Ctrl-C leaves complete shards and the journal, and nothing half.
    assert {path.suffix for path in (tmp_path / "out").iterdir()} == {".tar", ".lst", ""}
    # One whose name is there may be missing in the journal: it is packed again.
    shards = [tmp_path / "out" / f"shard-{number:05}.tar" for number in range(noted(tmp_path / "out"))]
    kept = {path: path.stat().st_mtime_ns for path in shards}
    refused = data("shard", pets, tmp_path / "out", "--shards", 6)
    assert refused.status == 1 and "shards of other samples" in refused.err
    packed(pets, tmp_path / "out", "--shards", 5)
    assert digests(tmp_path / "out") == digests(tmp_path / "whole")
    assert {path: path.stat().st_mtime_ns for path in kept} == kept and len(kept) >= 2


def test_a_directory_with_something_else_is_left_alone(packed, data, pets, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis").write_text("x")
    assert "not empty: thesis" in data("shard", pets, tmp_path / "mine").err
    packed(pets, tmp_path / "out")
    assert "has shards already" in data("shard", pets, tmp_path / "out").err


def test_a_full_disk_leaves_nothing_half_and_what_is_complete(packed, data, pets, tmp_path, monkeypatch):
    import phalanx.packing.pack as packing

    def full(sample: Any) -> bytes:
        if len(list((tmp_path / "out").glob("shard-*.tar"))) == 2:
            raise OSError(28, os.strerror(28))
        return Path(sample.path).read_bytes()

    with monkeypatch.context() as patch:
        patch.setattr(packing, "_content", full)
        done = data("shard", pets, tmp_path / "out", "--shards", 5)
    assert done.status == 1 and f"{tmp_path}/out: No space left on device" in done.err
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        ".phalanx-shards",
        *("shard-00000.lst", "shard-00000.tar", "shard-00001.lst", "shard-00001.tar"),
    ]
    packed(pets, tmp_path / "out", "--shards", 5)
    assert data("verify", tmp_path / "out").status == 0


def test_too_little_space_is_known_before_anything_is_written(data, pets, tmp_path, monkeypatch):
    class Full:
        f_bavail, f_frsize = 1, 4096

    monkeypatch.setattr("os.statvfs", lambda _path: Full)
    done = data("shard", pets, tmp_path / "out")
    assert done.status == 1 and "0 MiB free" in done.err and "at least 1 MiB" in done.err
    assert list((tmp_path / "out").iterdir()) == []


def test_a_shard_that_was_cut_short_is_named_to_its_reader_and_by_verify(packed, data, pets, tmp_path):
    packed(pets, tmp_path / "out", "--shards", 4)
    whole = data("verify", tmp_path / "out", "--json")
    assert whole.status == 0 and json.loads(whole.out)["problems"] == []
    assert "4 shards with 23 samples: as they were packed" in data("verify", tmp_path / "out").out
    cut, changed = tmp_path / "out" / "shard-00001.tar", tmp_path / "out" / "shard-00002.tar"
    size = cut.stat().st_size
    os.truncate(cut, size - 1000)
    with changed.open("r+b") as file:
        file.write(b"x")
    (tmp_path / "out" / "shard-00003.lst").unlink()
    words = f"{cut} was cut short: {size - 1000} bytes instead of {size}"
    with pytest.raises(shards.ShardError) as caught:
        for rank in range(3):
            list(shards.read(tmp_path / "out", rank, 3))
    assert words in str(caught.value) or "shard-00003.lst is missing" in str(caught.value)
    done = data("verify", tmp_path / "out")
    assert done.status == 1 and words in done.out
    assert f"{changed} was changed: its SHA-256" in done.out and "shard-00003.lst is missing" in done.out
    missing = data("verify", pets)
    assert missing.status == 1 and "shards.json is missing" in missing.err
