"""A directory that is kept in S3 as a whole: each copy's new files lie below a key of their own, and a list names all.

A copy counts once its list has replaced the one before. One that is cut short leaves the last one as it is.
"""

from __future__ import annotations

import json
import os
import re
import time
from contextlib import closing
from dataclasses import asdict, dataclass, field
from typing import Dict, Mapping, Tuple

from phalanx.objects import keys_as_files
from phalanx.objects.download import CopyError, fetch
from phalanx.objects.multipart import File, send
from phalanx.objects.s3_client import Bucket, Client, Object, S3Error
from phalanx.objects.workers import Keys, in_threads

LIST = "checkpoint.json"
"""Below the prefix: the list of the newest copy's files."""

_GENERATION = re.compile(r"[0-9]{6,}-[0-9]{6}-[0-9]{6}-[0-9a-f]{6}/")
_MISSING = 404
CHANGED = (404, 409, 412)
"""How S3 refuses what is about an object that another writer has replaced or removed meanwhile."""


class TakenError(Exception):
    """Another job keeps its directory there now."""


@dataclass(frozen=True)
class Kept:
    """A file's object."""

    key: str
    size: int
    etag: str


@dataclass(frozen=True)
class Copy:
    """A copy of the directory: its number, the job that made it, files and symbolic links by their relative paths."""

    number: int = 0
    job: str = ""
    saved_at: float = 0.0
    files: Mapping[str, Kept] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.number:06}-{self.job}"


class Shelf:
    """Where a directory's copies are: below a prefix, which ends with a slash.

    The job that last called `claim` is the only one that can `keep` copies. Methods raise S3Error, CopyError, OSError.
    """

    def __init__(self, bucket: Bucket, prefix: str, keys: Keys, job: str) -> None:
        self._bucket, self._prefix, self._keys, self._job = bucket, prefix, keys, job
        self._owner, self._etag = "", ""  # of the list, as this job has read or written it

    @property
    def url(self) -> str:
        return f"s3://{self._bucket.name}/{self._prefix}"

    def newest(self) -> Copy:
        """Return the newest copy, without files if there is none."""
        with closing(Client(self._bucket, self._keys)) as client:
            try:
                answer = client.call("GET", self._prefix + LIST, {})
            except S3Error as error:
                if error.status != _MISSING or error.code == "NoSuchBucket":
                    raise
                self._etag = ""
                return Copy()
        self._etag = answer.headers.get("etag", "")
        self._owner, found = _parsed(answer.body, self._prefix, f"{self.url}{LIST}")
        return found

    def name_after(self, last: Copy) -> str:
        """Return the name of the copy that `keep` makes."""
        return Copy(last.number + 1, self._job).name

    def claim(self, copy: Copy) -> None:
        """Make this job the one that keeps copies from now on. Raises TakenError if another one did so meanwhile."""
        self._write_list(copy)

    def bring(self, copy: Copy, directory: str) -> None:
        """Fetch a copy's files and links into a directory."""
        saved_s = int(copy.saved_at)
        paths = {
            Object(one.key, one.size, one.etag, saved_s): os.path.join(directory, p) for p, one in copy.files.items()
        }
        os.makedirs(directory, exist_ok=True)
        fetch(self._bucket, paths, directory, self._keys, lambda _: None, in_threads)
        for path, target in copy.links.items():
            link = os.path.join(directory, path)
            os.makedirs(os.path.dirname(link), exist_ok=True)
            if not os.path.lexists(link):
                os.symlink(target, link)

    def keep(self, last: Copy, changed: Mapping[str, str], same: Mapping[str, Kept], links: Mapping[str, str]) -> Copy:
        """Make a copy of these files (relative path → where one is now) and of those that are as in the last copy."""
        copy = Copy(last.number + 1, self._job, time.time(), {}, links)
        keys = {path: f"{self._prefix}{copy.name}/{path}" for path in changed}
        files = [File(place, keys[path], os.path.getsize(place)) for path, place in changed.items()]
        send(self._bucket, files, self._keys)
        there = self._objects()
        found = {path: there.get(key) for path, key in keys.items()}
        for file in files:
            if file.key not in there or there[file.key].size != file.size:
                raise CopyError(f"{file.key} did not arrive whole")
        new = {path: Kept(one.key, one.size, one.etag) for path, one in found.items() if one}
        copy = Copy(copy.number, copy.job, copy.saved_at, {**same, **new}, links)
        self._write_list(copy)
        self._remove_stale(copy, there)
        return copy

    def _objects(self) -> Dict[str, Object]:
        with closing(Client(self._bucket, self._keys)) as client:
            return {one.key: one for one in client.objects(self._prefix)}

    def _write_list(self, copy: Copy) -> None:
        """Replace the list, if it is still the one that this job knows (docs/aws-behaviour.md 12.5)."""
        body = json.dumps({"owner": self._job, **asdict(copy)}, indent=1).encode()
        condition = {"If-Match": self._etag} if self._etag else {"If-None-Match": "*"}
        with closing(Client(self._bucket, self._keys)) as client:
            try:
                answer = client.call("PUT", self._prefix + LIST, {}, condition, body)
            except S3Error as error:
                if error.status not in CHANGED:
                    raise
                # The answer to an earlier try of the same call may have been lost.
                is_there = self.newest() == copy
                if self._owner == self._job:
                    if is_there:
                        return
                    raise
                raise TakenError(f"job {self._owner} keeps its checkpoints in {self.url} now") from error
        self._etag = answer.headers.get("etag", "")

    def _remove_stale(self, copy: Copy, there: Mapping[str, Object]) -> None:
        """Remove objects of other copies, and no others: the prefix may have the user's own."""
        used = {one.key for one in copy.files.values()}
        with closing(Client(self._bucket, self._keys)) as client:
            for key in there.keys() - used:
                if _GENERATION.match(key[len(self._prefix) :]):
                    client.call("DELETE", key, {})


def _parsed(text: bytes, prefix: str, url: str) -> Tuple[str, Copy]:
    """Return the list's owner and the copy. Raises CopyError for what this module would not have written."""
    try:
        document = json.loads(text)
        files = {
            str(path): Kept(str(o["key"]), int(o["size"]), str(o["etag"])) for path, o in document["files"].items()
        }
        links = {str(path): str(target) for path, target in document["links"].items()}
        keys_as_files.require_files([*files, *links])
        copy = Copy(int(document["number"]), str(document["job"]), float(document["saved_at"]), files, links)
        # The name becomes a directory's.
        is_named = not copy.number or _GENERATION.fullmatch(f"{copy.name}/")
        inside = all(_is_inside(path, target, links) for path, target in links.items())
        if not (is_named and inside and all(one.key.startswith(prefix) for one in files.values())):
            raise ValueError("it leads elsewhere")
        return str(document["owner"]), copy
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, keys_as_files.NamesError) as error:
        raise CopyError(f"{url} is not a list of checkpoints: {error}") from error


def kept_links(links: Mapping[str, str]) -> Dict[str, str]:
    """Return the links that can be kept: those that lead to something in the directory."""
    return {path: target for path, target in links.items() if _is_inside(path, target, links)}


def _is_inside(path: str, target: str, links: Mapping[str, str]) -> bool:
    """Whether a link leads to something in the directory: the parent of another link is not known."""
    here = path.split("/")[:-1]
    for part in target.split("/"):
        if part == "..":
            if not here or "/".join(here) in links:
                return False
            here.pop()
        elif part not in ("", "."):
            here.append(part)
    return not target.startswith("/")
