"""Training on samples read from shards, against the same training on the same samples in memory, side by side.

The training is that of the example with PyTorch, on made-up images of its size: as PNG files that are decoded, and as
raw bytes, the hardest case. In each round both train on all samples, eight batches of one after eight of the other, so
that other load slows both; the shards are out of the page cache before it. The figure is the ratio of their times.
SAMPLES and ROUNDS are how many there are. WebDataset's own reader is measured as well, where it is installed.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.measure import PHALANX, ROOT, Figure, show

SAMPLES = int(os.environ.get("SAMPLES", "10240"))
ROUNDS = int(os.environ.get("ROUNDS", "5"))
SHARDS = 8
BATCH = 64
CHUNK = 8 * BATCH
SIDE = 28
MOST = 1 / 0.95
"""The most time that a training may take on shards, in that on the same samples in memory."""

Source = Callable[[], Iterable[dict[str, Any]]]


def figures() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(dir=os.environ.get("WORK")) as work:
        for kind in ("png", "bin"):
            shards = _packed(Path(work), kind)
            yield from _compared(shards, kind)


def _packed(work: Path, kind: str) -> Path:
    import numpy as np
    from PIL import Image

    chance = np.random.default_rng(0)
    for number in range(SAMPLES):
        # Blocks of equal values, which compress as real images do.
        image = np.kron(chance.integers(0, 256, (7, 7), dtype=np.uint8), np.ones((4, 4), dtype=np.uint8))
        path = work / kind / str(number % 10) / f"{number}.{kind}"
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind == "png":
            Image.fromarray(image).save(path)
        else:
            path.write_bytes(image.tobytes())
    shards = work / f"{kind}-shards"
    command = (PHALANX, "data", "shard", str(work / kind), str(shards), "--shards", str(SHARDS))
    subprocess.run(command, check=True, capture_output=True)
    return shards


def _compared(directory: Path, kind: str) -> Iterator[Figure]:
    import phalanx.shards

    memory = list(phalanx.shards.read(directory))
    sources: dict[str, Source] = {"memory": lambda: memory, "shards": partial(phalanx.shards.read, directory)}
    if importlib.util.find_spec("webdataset"):
        sources["WebDataset"] = partial(_by_webdataset, directory)
    train = _training(kind)
    times: dict[str, list[float]] = {name: [] for name in sources}
    for number in range(-1, ROUNDS):
        _forget_pages(directory)
        for name, elapsed in _side_by_side(sources, train).items():
            if number >= 0:  # the first round only warms up
                times[name].append(elapsed)
    for name in list(sources)[1:]:
        ratios = tuple(one / base for one, base in zip(times[name], times["memory"], strict=True))
        rate = SAMPLES / min(times["memory"])
        what = f"training on {kind} by {'phalanx.shards' if name == 'shards' else name}, of memory ({rate:.0f}/s)"
        yield Figure(what, ratios, "", MOST if name == "shards" else None)


def _side_by_side(sources: dict[str, Source], train: Callable[[Iterable[dict[str, Any]]], None]) -> dict[str, float]:
    """Train on all samples of each source, some samples of one after some of the other; return each one's time."""
    times = dict.fromkeys(sources, 0.0)
    left = {name: iter(source()) for name, source in sources.items()}
    for number in range(-(-SAMPLES // CHUNK)):
        for name in list(sources)[:: 1 if number % 2 else -1]:
            began = time.perf_counter()
            train(itertools.islice(left[name], CHUNK))
            times[name] += time.perf_counter() - began
    return times


def _training(kind: str) -> Callable[[Iterable[dict[str, Any]]], None]:
    """Return the function that trains on samples, each once."""
    sys.path.insert(0, str(ROOT / "examples" / "fashion_mnist"))
    import numpy as np
    import torch
    from model import Network  # pyright: ignore[reportMissingImports]
    from PIL import Image
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Network()
    optimizer = torch.optim.Adam(model.parameters())

    def decoded(content: bytes) -> Any:
        if kind == "png":
            return np.asarray(Image.open(io.BytesIO(content)))
        return np.frombuffer(content, dtype=np.uint8).reshape(SIDE, SIDE)

    def train(samples: Iterable[dict[str, Any]]) -> None:
        images: list[Any] = []
        labels: list[int] = []
        for sample in samples:
            images.append(decoded(sample[kind]))
            labels.append(int(sample["cls"]))
            if len(images) == BATCH:
                loss = nn.functional.cross_entropy(
                    model(torch.from_numpy(np.stack(images)).unsqueeze(1)), torch.tensor(labels)
                )
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                images, labels = [], []

    return train


def _by_webdataset(directory: Path) -> Iterable[dict[str, Any]]:
    webdataset: Any = importlib.import_module("webdataset")
    urls = [str(path) for path in sorted(directory.glob("*.tar"))]
    return webdataset.WebDataset(urls, shardshuffle=False, empty_check=False)


def _forget_pages(directory: Path) -> None:
    for path in directory.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


if __name__ == "__main__":
    show(list(figures()))
