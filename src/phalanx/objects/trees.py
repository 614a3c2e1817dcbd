"""Directories that a job may have nested deeper than Python's calls: to walk through, and to remove.

In many versions of Python, `shutil.rmtree` and `os.walk` fail there with RecursionError.
"""

from __future__ import annotations

import errno
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Iterator, List, Optional, Tuple, Union

LINK = "it is a link"
NO_FILE = "it is a pipe, a socket or a device"
_REMOVED = "it was removed, or its path is too long"
_OWNERS = 0o700
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def _ignore(_path: str, _error: OSError) -> None:
    pass


def walk(
    top: str, unlisted: Callable[[str, OSError], None] = _ignore, name: Callable[[str], object] = len
) -> Iterator[Tuple[str, List[str]]]:
    """Yield each directory from `top` on, with the names in it that are no directories. No link is followed.

    What can't be listed is passed over, after a call of `unlisted`. `name` is called with each before it is listed.
    """
    waiting = [top]
    while waiting:
        here = waiting.pop()
        name(here)
        names, below = _listed(here, unlisted)
        waiting += [os.path.join(here, name) for name in reversed(below)]
        yield here, names


def remove(top: str) -> bool:
    """Remove a directory with all that is in it, following no link; return whether it is gone.

    What can't be removed stays, and the rest goes.
    """
    try:
        place = _Place(_opened(top))
        try:
            _unlock(place.fd)
            _empty(place)
        finally:
            os.close(place.fd)
        os.rmdir(top)
    except OSError:
        pass
    return not os.path.lexists(top)


def status_of(path: str) -> Optional[os.stat_result]:
    """Return the status of what was found; None if it was removed since, or its path is too long for any call."""
    try:
        return os.lstat(path)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENAMETOOLONG):
            return None
        raise


def unread(path: str, status: Optional[os.stat_result]) -> str:
    """Return why this is no file that can be read; "" if it is one. `status` is what `status_of` found."""
    if status is None:
        return _REMOVED
    if stat.S_ISLNK(status.st_mode):
        return LINK
    if not stat.S_ISREG(status.st_mode):
        return NO_FILE
    if not os.access(path, os.R_OK, effective_ids=os.access in os.supports_effective_ids):
        return os.strerror(errno.EACCES) if os.path.lexists(path) else _REMOVED
    return ""


class _Place:
    """An open directory that moves down and up: only two are open at a time, and no path gets too long."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._above: List[Tuple[str, Tuple[int, int]]] = []

    def down(self, name: str) -> bool:
        """Enter a directory that can be left again; return whether that was possible."""
        try:
            below = _opened(name, self.fd)
        except OSError:
            return False
        _unlock(below)
        if not _leads_up(below):
            os.close(below)
            return False
        self._above.append((name, self._identity()))
        self._move(below)
        return True

    def up(self) -> str:
        """Go back to the directory above; return the name of the one that was left. Raises OSError."""
        name, identity = self._above.pop()
        self._move(os.open("..", _DIRECTORY, dir_fd=self.fd))
        if self._identity() != identity:
            raise OSError(errno.ESTALE, "another process has moved the directory", name)
        return name

    def _move(self, fd: int) -> None:
        os.close(self.fd)
        self.fd = fd

    def _identity(self) -> Tuple[int, int]:
        status = os.fstat(self.fd)
        return status.st_dev, status.st_ino


def _empty(place: _Place) -> None:
    """Remove all below. Raises OSError if another process moves a directory meanwhile."""
    left = [_unlink_in(place.fd)]
    while left:
        if left[-1]:
            if place.down(left[-1].pop()):
                left.append(_unlink_in(place.fd))
            continue
        left.pop()
        if left:
            _try(os.rmdir, place.up(), place.fd)


def _unlink_in(directory: int) -> List[str]:
    """Remove what is no directory, and return the names of the directories."""
    names, below = _listed(directory)
    for name in names:
        _try(os.unlink, name, directory)
    return below


def _opened(name: str, directory: Optional[int] = None) -> int:
    """Open a directory, also one that its owner may not read. Raises OSError."""
    try:
        return os.open(name, _DIRECTORY, dir_fd=directory)
    except PermissionError:
        # A link that takes its place now leads to what this user owns, or to nothing that can be changed.
        if stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
            os.chmod(name, _OWNERS, dir_fd=directory)
        return os.open(name, _DIRECTORY, dir_fd=directory)


def _unlock(directory: int) -> None:
    """Give back what removing and the way up need and the owner took away."""
    if os.fstat(directory).st_mode & _OWNERS != _OWNERS:
        try:
            os.fchmod(directory, _OWNERS)
        except OSError:
            pass  # another user's


def _leads_up(directory: int) -> bool:
    """Return whether names can be looked up in a directory, by the rights that this process has now."""
    try:
        os.stat("..", dir_fd=directory)
    except OSError:
        return False
    return True


def _try(call: Callable[..., None], name: str, directory: int) -> None:
    try:
        call(name, dir_fd=directory)
    except OSError:
        pass


def _listed(
    directory: Union[str, int], unlisted: Callable[[str, OSError], None] = _ignore
) -> Tuple[List[str], List[str]]:
    """Return the names of what is no directory, and of the directories."""
    names: List[str] = []
    below: List[str] = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                (below if entry.is_dir(follow_symlinks=False) else names).append(entry.name)
    except OSError as error:
        unlisted(str(directory), error)
    return names, below
