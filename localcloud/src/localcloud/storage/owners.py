"""Changes the owners of files in a kept shared directory when the nodes' ids on this machine start at another number.

Where root runs the local cloud, they used to be the same inside nodes and outside.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

from localcloud.nodes import userns

log = logging.getLogger(__name__)


def shift(top: Path, root: int) -> None:
    """Give all files below `top` to nodes whose root has the id `root` on this machine. No node may run meanwhile.

    Does nothing if they have such owners already. `top` itself is changed last, so an interrupted run is repeated.
    """
    if not top.is_dir() or _shifted((known := top.stat()).st_uid, root) == known.st_uid:
        return
    log.info("changing the owners of the files in %s to the nodes' ids", top)
    for entry in _all_below(top):
        _change(entry.path, entry.stat(follow_symlinks=False), root)
    _change(str(top), known, root)


def _all_below(top: Path) -> Iterator[os.DirEntry[str]]:
    """Yield everything below, without recursion: a job may have nested thousands of directories."""
    left = [str(top)]
    while left:
        with os.scandir(left.pop()) as entries:
            for entry in entries:
                yield entry
                if entry.is_dir(follow_symlinks=False):
                    left.append(entry.path)


def _change(path: str, known: os.stat_result, root: int) -> None:
    os.chown(path, _shifted(known.st_uid, root), _shifted(known.st_gid, root), follow_symlinks=False)


def _shifted(number: int, root: int) -> int:
    return userns.plain_id(number) + root
