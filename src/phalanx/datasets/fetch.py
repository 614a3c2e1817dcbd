"""Fetch data sets to the shared directory: `python3 -m phalanx.datasets.fetch ROOT NAME…`.

ROOT/NAME/…             the files in the form of the data set's own publisher (MXNet's scripts read idx.gz)
ROOT/chainer/…          $CHAINER_DATASET_ROOT
ROOT/MNIST/raw/… etc.   for torchvision, with root=ROOT
ROOT/NAME/.complete     the SHA-256 of all files; without it the data set is incomplete

It is fetched and converted in a directory of its own, and moved into place when all of it is there.
"""

from __future__ import annotations

import argparse
import errno
import fcntl
import json
import os
import shlex
import shutil
import sys
from typing import Any, Dict, List

from phalanx.datasets import forms, sources

CATALOG = "catalog.json"
COMPLETE = ".complete"
Entry = Dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(prog="phalanx.datasets.fetch", description=__doc__)
    parser.add_argument("root")
    parser.add_argument("names", nargs="+")
    chosen = parser.parse_args()
    with open(CATALOG, encoding="utf-8") as file:
        catalog = json.load(file)
    try:
        for name in chosen.names:
            fetch(chosen.root, name, catalog[name])
    except (sources.SourceError, forms.FormatError) as error:
        sys.exit(f"error: {error}")
    except OSError as error:
        top, repair = shlex.quote(os.path.dirname(chosen.root)), ""
        if error.errno == errno.EACCES:
            repair = f"\n`phalanx exec --sudo -- chmod o+rwx,+t {top}` lets jobs write there."
        sys.exit(f"error: {error.filename or chosen.root}: {error.strerror or error}{repair}")


def fetch(root: str, name: str, entry: Entry) -> None:
    """Fetch one data set unless it is there already. Raises SourceError, FormatError, OSError."""
    os.makedirs(root, exist_ok=True)
    with open(os.path.join(root, f".{name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_complete(root, name, entry):
            say(f"{name} is already in {root}")
            return
        made = os.path.join(root, f".{name}.new")
        # What an interrupted fetch left.
        shutil.rmtree(made, ignore_errors=True)
        try:
            place(root, made, make(made, name, entry))
        finally:
            shutil.rmtree(made, ignore_errors=True)
    say(f"{name} is in {root}")


def is_complete(root: str, name: str, entry: Entry) -> bool:
    try:
        with open(os.path.join(root, name, COMPLETE), encoding="utf-8") as file:
            return json.load(file) == entry["files"]
    except (OSError, ValueError):
        return False


def make(made: str, name: str, entry: Entry) -> List[str]:
    """Fetch the files and write all forms below `made`; return the forms' directories, the complete one last."""
    contents = sources.fetch(name, entry, os.path.join(made, "download"), say)
    say(f"{name}: writing it for {', '.join(forms.LIBRARIES)}")
    places = forms.write(name, entry, contents, made)
    with open(os.path.join(made, name, COMPLETE), "w", encoding="utf-8") as file:
        json.dump(entry["files"], file)
    # Before the directories are moved: a power failure must not leave an empty file that counts as complete.
    os.sync()
    return places


def place(root: str, made: str, places: List[str]) -> None:
    """Move each directory to its place; an older one is replaced."""
    for relative in places:
        target = os.path.join(root, relative)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.rmtree(target, ignore_errors=True)
        os.rename(os.path.join(made, relative), target)


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
