"""The images on this machine: NAME/tree is the file system, whose files belong to the nodes' ids, and NAME/image.json.

An image is complete once it has its image.json. A build that was killed leaves NAME.partial.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from localcloud.nodes import userns
from localcloud.storage import trees

TREE = "tree"
PARTIAL = ".partial"
_LOCK = ".lock"
_RECORD = "image.json"
_STATUS = "var/lib/dpkg/status"
_INSTALLED = "Status: install ok installed"
_INSTANCE = re.compile(r"lowerdir=(?P<lower>[^,\s]+),.*?upperdir=(?P<state>[^,\s]+)/nodes/(?P<instance>i-[0-9a-z]+)/")
PROC = Path("/proc")
_FIELD = re.compile(r"^(Package|Version): (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Image:
    """A built image. `root` is the uid that its root has in the local cloud's user namespace.

    `ami` and `ami_name` are the id and the name of one that Image Builder made, and `tags` its tags.
    """

    name: str
    path: str
    built: str
    size_bytes: int
    packages: int
    root: int
    ami: str = ""
    ami_name: str = ""
    tags: dict[str, str] = field(default_factory=dict)


def find(directory: Path, name: str) -> Image | None:
    """Return a complete image, or None."""
    try:
        return Image(**json.loads((directory / name / _RECORD).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def images(directory: Path) -> list[Image]:
    """Return all complete images, by name."""
    names = sorted(path.parent.name for path in directory.glob(f"*/{_RECORD}") if path.parent.suffix != PARTIAL)
    return [image for image in (find(directory, name) for name in names) if image is not None]


def size_bytes(tree: Path) -> int:
    """What a tree takes on disk, without the few directories that only its accounts can read."""
    top = os.open(tree, os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        found = ((name, here) for _, here, names in trees.walk(top) for name in names)
        return sum(os.stat(name, dir_fd=here, follow_symlinks=False).st_blocks * 512 for name, here in found)
    finally:
        os.close(top)


def contents(tree: Path, manifest: str | None = None) -> dict[str, Any]:
    """Return what the JSON file `manifest` of the image says; without it, its packages' versions, as `system`."""
    found = tree / manifest.lstrip("/") if manifest else None
    if found is not None and found.is_file() and not found.is_symlink():
        return json.loads(found.read_text())
    stanzas = (tree / _STATUS).read_text(errors="replace").split("\n\n")
    fields = [dict(_FIELD.findall(stanza)) for stanza in stanzas if _INSTALLED in stanza]
    return {"system": {one["Package"]: one["Version"] for one in fields}}


def packages(tree: Path) -> int:
    """Return how many packages are installed in a tree."""
    return (tree / _STATUS).read_text(errors="replace").count(f"\n{_INSTALLED}\n")


def users(path: Path) -> list[str]:
    """Return the instances whose disks are layers above an image, of all local clouds of this user, as their mounts."""
    found = set[tuple[str, str]]()
    for table in PROC.glob("[0-9]*/mountinfo"):
        with contextlib.suppress(OSError):
            for one in _INSTANCE.finditer(table.read_text(errors="replace")):
                if str(path / TREE) in one["lower"].split(":"):
                    found.add((one["instance"], one["state"]))
    return [f"{instance} of the local cloud in {state}" for instance, state in sorted(found)]


def lock_of(directory: Path, name: str) -> Path:
    """Return the file that the process holds a lock on which builds an image."""
    return directory / f"{name}{_LOCK}"


@contextlib.contextmanager
def locked(directory: Path, name: str) -> Iterator[bool]:
    """Hold the lock of an image's build; yield False at once if another process holds it."""
    with lock_of(directory, name).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def remove_abandoned(directory: Path, remove: Callable[[Path], None]) -> None:
    """Remove what builds have left whose process was killed, each with `remove`."""
    for partial in directory.glob(f"*{PARTIAL}"):
        with locked(directory, partial.stem) as is_free:
            if is_free and partial.exists():
                remove(partial)


def full_disk(text: str, place: Path) -> str:
    """Return in words that a disk is full, if a program's messages say so; else ""."""
    if os.strerror(errno.ENOSPC) not in text:
        return ""
    return f"the disk of {place} is full: {shutil.disk_usage(place).free >> 20} MiB are free"


def complete(partial: Path, image: Image) -> None:
    """Turn a partial image into the complete one, which replaces an earlier one."""
    target = Path(image.path)
    (partial / _RECORD).write_text(json.dumps(asdict(image)) + "\n")
    if target.exists():
        remove(target)
    partial.rename(target)


def forget(path: Path) -> None:
    """Make an image one that is not complete, before its files are removed."""
    (path / _RECORD).unlink(missing_ok=True)


def remove(path: Path) -> None:
    """Remove an image or a part of one. Its files have ids that only root and our user namespaces can remove."""
    forget(path)
    if (path / TREE).exists():
        pid = userns.spawn("range", lambda: subprocess.run(["rm", "-rf", str(path / TREE)], check=False).returncode)
        os.waitpid(pid, 0)
    shutil.rmtree(path)
