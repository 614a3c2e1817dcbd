"""The images on this machine: NAME/tree is the file system, whose files belong to the nodes' ids, and NAME/image.json.

An image is complete once it has its image.json. A build that was killed leaves NAME.partial.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import asdict, dataclass, field
from pathlib import Path

from phalanx.localcloud import userns

TREE = "tree"
PARTIAL = ".partial"
_RECORD = "image.json"


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
    files = (Path(place, name) for place, _directories, names in os.walk(tree) for name in names)
    return sum(file.lstat().st_blocks * 512 for file in files)


def complete(partial: Path, image: Image) -> None:
    """Turn a partial image into the complete one, which replaces an earlier one."""
    target = Path(image.path)
    (partial / _RECORD).write_text(json.dumps(asdict(image)) + "\n")
    if target.exists():
        remove(target)
    partial.rename(target)


def remove(path: Path) -> None:
    """Remove an image or a part of one. Its files have ids that only root and our user namespaces can remove."""
    (path / _RECORD).unlink(missing_ok=True)
    if (path / TREE).exists():
        pid = userns.spawn("range", lambda: subprocess.run(["rm", "-rf", str(path / TREE)], check=False).returncode)
        os.waitpid(pid, 0)
    shutil.rmtree(path)
