"""Files with holes, such as checkpoints that are larger than their content: only their content is sent.

The pieces of such a file follow a line that says where they belong. Some file systems don't say where holes are, but
use less room than the file has: their files are sent whole, and the other end makes the holes again.
"""

from __future__ import annotations

import errno
import json
import os
from typing import TYPE_CHECKING

from phalanx.node.validate import Invalid, parse

if TYPE_CHECKING:
    from typing import IO, Any, Callable, List, Optional, Tuple

    Pieces = Tuple[Tuple[int, int], ...]

PIECES, SPARSE = "phalanx-pieces", "phalanx-sparse"
"""What the header of a file with holes says: pieces follow, or the whole file."""
# A smaller hole costs less than another piece.
_SMALLEST_HOLE = 64 << 10
_MOST_PIECES = 10_000
LONGEST_LINE = 1 << 20
"""Of what is said of a file's pieces."""
_BLOCK_BYTES = 1 << 20
# The largest file of ext4.
_LARGEST_BYTES = 16 << 40


def lacks_blocks(status: os.stat_result) -> bool:
    """Whether a file uses less room than it is long."""
    return status.st_blocks * 512 + _SMALLEST_HOLE <= status.st_size


def pieces(path: str, status: os.stat_result) -> Optional[Pieces]:
    """Return (offset, bytes) of each piece of a file with holes; None for others, and where nobody can tell.

    Raises OSError.
    """
    if not lacks_blocks(status) or not hasattr(os, "SEEK_DATA"):
        return None
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return _found(descriptor, status.st_size)
    finally:
        os.close(descriptor)


def _found(descriptor: int, size: int) -> Optional[Pieces]:
    found: List[Tuple[int, int]] = []
    end = 0
    while end < size and len(found) <= _MOST_PIECES:
        try:
            start = os.lseek(descriptor, end, os.SEEK_DATA)
            end = os.lseek(descriptor, start, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole is left
                break
            return None
        if found and start - sum(found[-1]) < _SMALLEST_HOLE:
            start = found.pop()[0]
        found.append((start, end - start))
    cut = tuple((start, min(count, size - start)) for start, count in found if start < size)
    return None if len(found) > _MOST_PIECES or cut == ((0, size),) else cut


def sent_bytes(places: Pieces, size: int) -> int:
    """Return how many bytes `Sent` has."""
    return len(_line(places, size)) + sum(count for _, count in places)


def _line(places: Pieces, size: int) -> bytes:
    return json.dumps([size, places]).encode() + b"\n"


class Sent:
    """What is sent of a file with holes: the line, and then the pieces of a `guest_file.Content`."""

    def __init__(self, content: Any, places: Pieces, size: int) -> None:
        self.path, self._content = content.path, content
        self._ahead = _line(places, size)
        self._left = list(reversed(places))

    def read(self, size: int) -> bytes:
        """Return as many bytes; fewer only at the end. Raises OSError."""
        found = [self._ahead[:size]]
        self._ahead = self._ahead[size:]
        size -= len(found[0])
        while size and self._left:
            start, count = self._left.pop()
            self._content.seek(start)
            piece = self._content.read(min(size, count))
            found.append(piece)
            size -= len(piece)
            if count > len(piece):
                self._left.append((start + len(piece), count - len(piece)))
            if not piece:
                break
        return b"".join(found)


def write(content: Any, kind: str, size: int, file: IO[bytes], add: Callable[[int], None]) -> None:
    """Write what arrives of a file to an empty one, with its holes; `add` counts. Raises OSError, and Invalid."""
    if kind == PIECES:
        line = content.readline(LONGEST_LINE)
        length, places = _parsed(line, size)
        add(len(line))
        for start, count in places:
            file.seek(start)
            _copy(content, count, file, add, is_sparse=False)
        file.truncate(length)
    else:
        _copy(content, size, file, add, kind == SPARSE)
        file.truncate(file.tell())


def _copy(content: Any, left: int, file: IO[bytes], add: Callable[[int], None], is_sparse: bool) -> None:
    while left and (data := content.read(min(left, _BLOCK_BYTES))):
        if is_sparse and not data.strip(b"\0"):
            file.seek(len(data), os.SEEK_CUR)
        else:
            file.write(data)
        left -= len(data)
        add(len(data))


def _parsed(line: bytes, size: int) -> Tuple[int, Pieces]:
    """Return the length and the pieces of a file that takes `size` bytes to send. Raises Invalid."""
    value = parse(line)
    if not (isinstance(value, list) and len(value) == 2 and type(value[0]) is int and isinstance(value[1], list)):
        raise Invalid("are no pieces")
    length, places, end = value[0], value[1], 0
    for one in places:
        if not (isinstance(one, list) and len(one) == 2 and all(type(number) is int for number in one)):
            raise Invalid("are no pieces")
        if one[0] < end or one[1] <= 0:
            raise Invalid("are not in order")
        end = sum(one)
    if end > length or length > _LARGEST_BYTES or len(line) + sum(count for _, count in places) != size:
        raise Invalid("do not fit the file")
    return length, tuple((start, count) for start, count in places)
