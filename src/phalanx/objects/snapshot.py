"""A directory at one moment, while a job writes into it: hard links to its files stay when these are replaced."""

from __future__ import annotations

import json
import os
import stat
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Set, Tuple, Union

from phalanx.objects import keys_as_files, trees

Print = Tuple[int, int, int]
"""Of a file: its inode, size and time of its last change."""

_TRIES = 10
_PAUSE_S = 0.2


@dataclass(frozen=True)
class Seen:
    """The files and the symbolic links of a directory, by their relative paths.

    `left_out` says which files S3 could not hold or this process can't read, each with the reason.
    """

    files: Mapping[str, Print] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    left_out: Tuple[str, ...] = ()

    @property
    def names(self) -> Set[Tuple[str, Union[int, str]]]:
        """Which files have which names: a file that only grows, such as a log, is the same."""
        return {*((path, inode) for path, (inode, _, _) in self.files.items()), *self.links.items()}


class Home:
    """A place on the shared directory for one job's directory, `files`, and for what is known of its copies.

    `key_prefix` is what comes before a file's path in the key of its copy.
    """

    def __init__(self, root: str, key_prefix: str = "") -> None:
        self._key_prefix = key_prefix
        self.files = os.path.join(root, "files")
        self._links = os.path.join(root, "snapshot")
        self._incoming = os.path.join(root, "incoming")
        self._before = os.path.join(root, "before")
        self._note = os.path.join(root, "copies.json")
        os.makedirs(root, exist_ok=True)

    def knows(self, copy: str) -> bool:
        """Whether `files` is this copy, or newer."""
        return copy in self._noted().get("copies", ()) and os.path.isdir(self.files)

    def kept(self) -> Mapping[str, Print]:
        """Return the files that are in the newest copy, as they were then."""
        noted = self._noted().get("files", {})
        return {path: tuple(one) for path, one in noted.items()} if isinstance(noted, dict) else {}

    def note(self, copies: Tuple[str, ...], files: Mapping[str, Print]) -> None:
        """Keep which copies `files` is, or is newer than."""
        part = f"{self._note}.new"
        with open(part, "w", encoding="utf-8") as file:
            json.dump({"copies": copies, "files": files}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, self._note)

    def incoming(self, copy: str) -> str:
        """Return where a copy is brought to, with what an earlier try has brought of the same one."""
        place = os.path.join(self._incoming, copy)
        if not os.path.isdir(place):
            trees.remove(self._incoming)
        return place

    def replace(self, copy: str) -> None:
        """Put the copy in place of `files`, and keep those until the next time."""
        trees.remove(self._before)
        with suppress(FileNotFoundError):
            os.rename(self.files, self._before)
        os.rename(self.incoming(copy), self.files)
        self.note((copy,), self.look().files)

    def look(self) -> Seen:
        """Return what is in `files` now."""
        files: Dict[str, Print] = {}
        links: Dict[str, str] = {}
        left_out: List[str] = []

        def leave_out(path: str, reason: str) -> None:
            left_out.append(f"{os.path.relpath(path, self.files)!r}: {reason}")

        for directory, names in trees.walk(self.files, lambda path, error: leave_out(path, str(error.strerror))):
            for name in names:
                path = os.path.join(directory, name)
                relative = os.path.relpath(path, self.files)
                status = trees.status_of(path)
                if status is None:
                    continue
                is_link = stat.S_ISLNK(status.st_mode)
                reason = keys_as_files.unfit(relative, self._key_prefix)
                if not is_link:
                    reason = reason or trees.unread(path, status)
                with suppress(FileNotFoundError):
                    if reason:
                        leave_out(path, reason)
                    elif is_link:
                        links[relative] = self._target(path)
                    else:
                        files[relative] = (status.st_ino, status.st_size, status.st_mtime_ns)
        return Seen(files, links, tuple(left_out))

    def _target(self, link: str) -> str:
        """Return where a link leads; relative if that is in `files`, whose place the next cluster may not have."""
        target = os.readlink(link)
        if target.startswith(f"{self.files}/"):
            return os.path.relpath(target, os.path.dirname(link))
        return target

    def snapshot(self, kept: Mapping[str, Print]) -> Optional[Tuple[Seen, Dict[str, str]]]:
        """Return one moment's files, and hard links to those that are not `kept`; None if names change all the time."""
        for _ in range(_TRIES):
            seen = self.look()
            changed = [path for path, own in seen.files.items() if kept.get(path) != own]
            links = {path: os.path.join(self._links, str(number)) for number, path in enumerate(changed)}
            if self._link(links) and self.look().names == seen.names:
                return seen, links
            time.sleep(_PAUSE_S)
        return None

    def _link(self, links: Mapping[str, str]) -> bool:
        trees.remove(self._links)
        os.makedirs(self._links)
        try:
            for path, link in links.items():
                os.link(os.path.join(self.files, path), link)
        except FileNotFoundError:
            return False  # it was removed, or is being replaced
        return True

    def forget_snapshot(self) -> None:
        """Remove the links, which keep the content of replaced files on the disk."""
        trees.remove(self._links)

    def _noted(self) -> Dict[str, Any]:
        try:
            with open(self._note, encoding="utf-8") as file:
                noted = json.load(file)
            return noted if isinstance(noted, dict) else {}
        except (OSError, ValueError):
            return {}
