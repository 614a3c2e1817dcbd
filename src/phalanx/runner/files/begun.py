"""Large files whose copy was cut off: what came stays under a hidden name, and the next copy goes on behind it.

The receiver tells the sender how much of a file it has, with the SHA-256 of that. A sender whose file begins otherwise
sends it whole. So whatever has changed meanwhile, at either end, no file is put together from two.
"""

from __future__ import annotations

import hashlib
import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from phalanx import guest_file
from phalanx.runner.files import holes

if TYPE_CHECKING:
    from typing import Any, Dict, Tuple

FROM = "phalanx-from "
"""Begins what the header of such a file says; a number of bytes follows."""
LEAST_BYTES = 8 << 20
"""What is shorter is sent again."""
_BLOCK_BYTES = 1 << 20


class Begun(NamedTuple):
    """The beginning of a file that the receiver has: its place, how long it is, and its hash."""

    path: str
    bytes: int
    digest: str

    def put_back(self, place: str) -> None:
        """Keep it for another copy to `place`, unless it has been used. Raises OSError."""
        if os.path.lexists(self.path):
            os.replace(self.path, resting_place(place))


def resting_place(place: str) -> str:
    """Return where the beginning of a file for this place stays until another copy."""
    directory, name = os.path.split(place)
    return os.path.join(directory, f".phalanx-{hashlib.sha256(os.fsencode(name)).hexdigest()[:16]}.begun")


def claim(place: str, size: int, part: str) -> Begun | None:
    """Take the beginning of a file of this size, and rename it to `part`, so that no other copy continues it, too."""
    resting = resting_place(place)
    with suppress(OSError):
        found = os.lstat(resting)
        # Another name of it may be another file's.
        if stat.S_ISREG(found.st_mode) and found.st_nlink == 1 and LEAST_BYTES <= found.st_size <= size:
            os.rename(resting, part)
            return Begun(part, found.st_size, _digest_of(part, found.st_size))
    return None


def _digest_of(path: str, size: int) -> str:
    digest = hashlib.sha256()
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        while size and (block := file.read(min(size, _BLOCK_BYTES))):
            digest.update(block)
            size -= len(block)
    return "" if size else digest.hexdigest()


def read_answer(answer: Any, items: int) -> Dict[int, Tuple[int, str]]:
    """Return what the receiver has of the items with these numbers: how many bytes, and their hash."""
    said = answer.get("begun") if isinstance(answer, dict) else None
    found: Dict[int, Tuple[int, str]] = {}
    for number, about in said.items() if isinstance(said, dict) else ():
        is_number = isinstance(number, str) and number.isascii() and number.isdigit() and len(number) < 10
        is_pair = isinstance(about, list) and len(about) == 2 and type(about[0]) is int and isinstance(about[1], str)
        if is_number and is_pair and about[0] > 0 and int(number) < items:
            found[int(number)] = about[0], about[1]
    return found


def begins_so(path: str, size: int, digest: str) -> bool:
    """Whether a file begins with as many bytes of this hash, and has no holes. Raises OSError if nobody answers."""
    content = guest_file.Content(path, os.O_NOFOLLOW)
    if holes.lacks_blocks(content.status) or content.size < size:
        return False
    found = hashlib.sha256()
    while size and (block := content.read(min(size, _BLOCK_BYTES))):
        found.update(block)
        size -= len(block)
    return not size and found.hexdigest() == digest
