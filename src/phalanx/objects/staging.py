"""Copies prefixes of S3 as a job, to the shared directory or a node's own disks: `python3 -m phalanx.objects.staging`.

What to copy is in `stage.json`, beside the code: a list of objects with the keys name, bucket, region, endpoint, prefix
and directory. A relative directory is below PHALANX_SCRATCH, on the disks of the node that this runs on.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import sys
import time
from contextlib import closing
from typing import Any, Dict

from phalanx.objects.download import CopyError, Progress, download, size_text
from phalanx.objects.job_keys import OfJob
from phalanx.objects.keys_as_files import NamesError
from phalanx.objects.s3_client import Bucket, Client, S3Error, endpoint_here

TASKS = "stage.json"
_EVERY_S = 5.0


def main() -> None:
    with open(TASKS, encoding="utf-8") as file:
        tasks = json.load(file)
    keys = OfJob()
    for task in tasks:
        try:
            stage({**task, "directory": place(task["directory"])}, keys)
        except (S3Error, CopyError, NamesError) as error:
            sys.exit(f"error: {task['name']}: {error}")
        except OSError as error:
            sys.exit(f"error: {error.filename or task['directory']}: {error.strerror or error}; what is complete stays")


def place(directory: str) -> str:
    """Return the directory's path. Raises CopyError for a relative one if this node has no disks of its own."""
    scratch = os.environ.get("PHALANX_SCRATCH", "")
    if not os.path.isabs(directory) and not scratch:
        raise CopyError(f"{socket.gethostname()} has no NVMe disks of its own: $PHALANX_SCRATCH is not set")
    return os.path.join(scratch, directory)


def stage(task: Dict[str, Any], keys: OfJob) -> None:
    """Copy one prefix, alone: two jobs that copy the same one take turns."""
    bucket = Bucket(task["bucket"], task["region"], endpoint_here(task["endpoint"]))
    directory = task["directory"]
    above, name = os.path.split(directory)
    os.makedirs(above, exist_ok=True)
    # Jobs may write nothing beside the shared directory itself.
    beside = directory if os.path.isdir(directory) and not os.access(above, os.W_OK) else above
    with open(os.path.join(beside, f".{name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        show = Reporter(task["name"])
        total = download(bucket, place_in(bucket, task["prefix"], keys), directory, keys, show)
    say(f"{task['name']} is in {directory}: {described(total)}")


def place_in(bucket: Bucket, key: str, keys: OfJob) -> str:
    """Return the key if an object has it, or else the prefix of what is below it."""
    if key[-1:] in ("", "/"):
        return key
    with closing(Client(bucket, keys)) as client:
        return key if any(one.key == key for one in client.objects(key)) else f"{key}/"


class Reporter:
    """Prints the progress of a copy every few seconds."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._next_s = time.monotonic() + _EVERY_S

    def __call__(self, progress: Progress) -> None:
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + _EVERY_S
            percent = 100 * progress.bytes // max(1, progress.total_bytes)
            say(f"{self._name}: {progress.objects} of {progress.total_objects} objects, {percent} %")


def described(total: Progress) -> str:
    objects = "1 object" if total.total_objects == 1 else f"{total.total_objects} objects"
    return f"{objects}, {size_text(total.total_bytes)}"


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
