"""Unpacks a job's environment on a node's own disk, where its imports cost no round trips to the shared directory.

<shared>/.phalanx/environments/NAME-HASH.tar.gz      what is unpacked; complete if the environment beside it is; only
                                                     where the head had room for a copy
/var/lib/phalanx/environments/NAME-HASH              its path on every node: a link to the next line's
/var/lib/phalanx/environments/copies/NAME-HASH/      this node's copy; where there is no room for one, a link to the
                                                     environment on the shared directory: Open MPI resolves its own
                                                     path, and looks for the result on all nodes
"""

from __future__ import annotations

import fcntl
import json
import os
import stat

from phalanx.objects import trees

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List

HOME = "/var/lib/phalanx/environments"
"""The agent makes it, for the job user."""

COMPLETE = ".complete"
_COPIES = "copies"
# A file for the success, because a starter's main thread may take the exit code of every child.
_UNPACKED = ".unpacked"
# The packages reach the disk before that: a copy marked complete must be complete after a power failure, too.
_UNPACK = f'tar -xzf "$1" -C "$2" && sync -f "$2" && : >"$2/{_UNPACKED}"'
# In as many bytes of a program there is a zero byte, which no script has.
_TEXT_BYTES = 64
# Of the free space: a copy must leave room for what jobs write.
_SHARE = 0.25


def root_of(job_directory: str) -> str:
    """Return the shared directory of environments, beside that of jobs."""
    return os.path.join(os.path.dirname(os.path.dirname(job_directory)), "environments")


def path_of(kept: str) -> str:
    """Return the path by which jobs use the environment that is kept at `kept`."""
    return os.path.join(HOME, os.path.basename(kept)) if os.path.isdir(HOME) else kept


def archive_of(kept: str) -> str:
    return f"{kept}.tar.gz"


def is_here(kept: str) -> bool:
    """Return whether this node can use the environment as it is kept now."""
    path = path_of(kept)
    # Its creation time distinguishes an environment from an earlier one of the same name.
    return path == kept or _read(path) == _read(kept) != b""


def has_room(size_bytes: int) -> bool:
    """Return whether this node has room for its own copy of an environment of that size."""
    if not os.path.isdir(HOME):
        return False
    disk = os.statvfs(HOME)
    return size_bytes <= _SHARE * disk.f_bavail * disk.f_frsize


def is_for_every_node(path: str) -> bool:
    """Return whether an environment's path is one that leads to each node's own copy."""
    return os.path.dirname(path) == HOME


def bring(kept: str) -> None:
    """Have `path_of` the environment lead to a copy on this node, or to where it is kept. Raises OSError."""
    with open(f"{path_of(kept)}.lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if not is_here(kept):
            _remove_pruned(os.path.dirname(kept))
            # Whatever was there, the new copy has replaced it.
            os.symlink(_unpacked(kept, held.fileno()) or _linked(kept), path_of(kept))


def remove(kept: str) -> None:
    """Remove this node's copy."""
    trees.remove(_copy_of(kept))
    for link in (_copy_of(kept), path_of(kept)):
        if os.path.islink(link):
            os.unlink(link)


def _copy_of(kept: str) -> str:
    return os.path.join(HOME, _COPIES, os.path.basename(kept))


def _read(environment: str) -> bytes:
    try:
        with open(os.path.join(environment, COMPLETE), "rb") as file:
            return file.read()
    except FileNotFoundError:
        return b""


def _remove_pruned(shared: str) -> None:
    """Remove copies of environments that are kept no more: a job that used one would have kept it."""
    for name in _names(os.path.join(HOME, _COPIES)):
        kept = os.path.join(shared, name)
        if not os.path.exists(os.path.join(kept, COMPLETE)):
            remove(kept)


def _names(directory: str) -> List[str]:
    return os.listdir(directory) if os.path.isdir(directory) else []


def _move(programs: str, old: str, new: str) -> None:
    """Replace the environment's place in its scripts, which begin with the path of its Python."""
    for place in (os.path.join(here, name) for here, names in trees.walk(programs) for name in names):
        if os.path.isfile(place) and not os.path.islink(place):
            os.chmod(place, os.stat(place).st_mode | stat.S_IWUSR)
            with open(place, "rb+") as file:
                text = file.read()
                if b"\0" not in text[:_TEXT_BYTES]:
                    file.seek(0)
                    file.write(text.replace(os.fsencode(old), os.fsencode(new)))
                    file.truncate()


def _linked(kept: str) -> str:
    """Return a link to where the environment is kept, at the path that a copy has on other nodes."""
    os.makedirs(os.path.join(HOME, _COPIES), exist_ok=True)
    os.symlink(kept, _copy_of(kept))
    return _copy_of(kept)


def _unpacked(kept: str, held: int) -> str:
    """Return a new copy on this node; "" if it has no room for one. The program that unpacks inherits the lock."""
    import subprocess  # here, because most starters do not need its 10 ms

    remove(kept)
    copy, complete = _copy_of(kept), _read(kept)
    if not has_room(json.loads(complete)["bytes"]):
        return ""
    os.makedirs(copy)
    argv = ["sh", "-c", _UNPACK, "sh", archive_of(kept), copy]
    subprocess.run(argv, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=(held,), check=False)
    if not os.path.exists(os.path.join(copy, _UNPACKED)):
        remove(kept)
        return ""
    _move(os.path.join(copy, "bin"), kept, path_of(kept))
    with open(os.path.join(copy, COMPLETE), "wb") as file:
        file.write(complete)
    return copy
