"""The example's training resumes from its checkpoint, and trains no epoch twice."""

from __future__ import annotations

import gzip
import os
import random
import socket
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "fashion_mnist"
IMAGES = 128
# Both runs share one import of torch. The first is killed while it writes another checkpoint.
TWICE = """import data, pathlib, runpy, sys
data.VALIDATION_IMAGES = 64
for epochs in "12":
    sys.argv = ["train.py", "--data", "data", "--out", "out", "--epochs", epochs]
    runpy.run_path("train.py", run_name="__main__")
    pathlib.Path("out/checkpoint.partial").write_bytes(b"half of one")
"""


def write_images(directory: Path) -> None:
    directory.mkdir()
    for name, shape in (("images-idx3", (IMAGES, 28, 28)), ("labels-idx1", (IMAGES,))):
        count = 28 * 28 * IMAGES if len(shape) == 3 else IMAGES
        header = bytes([0, 0, 8, len(shape)]) + b"".join(size.to_bytes(4, "big") for size in shape)
        content = random.Random(0).randbytes(count)
        labels = bytes(value % 10 for value in content) if len(shape) == 1 else content
        (directory / f"train-{name}-ubyte.gz").write_bytes(gzip.compress(header + labels, 1))


def test_training_resumes_after_the_last_saved_epoch(tmp_path):
    write_images(tmp_path / "data")
    for name in ("train.py", "data.py", "model.py"):
        (tmp_path / name).symlink_to(EXAMPLE / name)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    done = subprocess.run(
        [sys.executable, "-c", TWICE],
        cwd=tmp_path,
        env={**os.environ, **alone, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    rows = [line for line in done.stdout.splitlines() if line[:1] in "12" and "processes" not in line]
    assert [row.split()[0] for row in rows] == ["1", "1", "2"], done.stdout + done.stderr
    # Even the time is equal: the row was read, not trained again.
    assert rows[0] == rows[1]
