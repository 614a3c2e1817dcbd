"""Which files of a copy are at their place already, and need not be sent: those of the same size and time, as in rsync.

After the stream's header, the sender lists its files, and the receiver answers which of them it has. A file that comes
gets the time that it had when it was listed, to the nanosecond. What an end says decides only what is sent to it.

Tools such as `cp -p`, `mv` and tar put another content in place with an old time. They can't set a file's ctime. So a
file is sent, too, if its ctime is later than that of the receiver's copy. The sender lists how long ago it was, because
the ends' clocks differ.
"""

from __future__ import annotations

import json
import os
import re
import stat
import time
import unicodedata
from types import MappingProxyType
from typing import TYPE_CHECKING, Mapping, NamedTuple

from phalanx.node.validate import Invalid, parse
from phalanx.runner.files.begun import LEAST_BYTES, Begun, claim
from phalanx.runner.files.holes import LONGEST_LINE

if TYPE_CHECKING:
    from typing import IO, Any, Dict, FrozenSet, List, Optional, Sequence, Set, Tuple

    _Listed = Tuple[int, int, int, int, int]

_S = 1_000_000_000
# Every file system accepts times from 1970 to 2106.
_LATEST_NS = ((1 << 32) - 1) * _S
# A file that was changed so recently may change again without getting another time: kernels count in ticks of some
# milliseconds, and file systems such as Lustre in seconds.
_TICK_NS, _COARSE_NS = _S // 20, 2 * _S
# Ages are listed when the stream begins, and read when the other end has started.
_STARTED_WITHIN_NS = 2 * _S
# A name of 4096 bytes, of which each may need six characters in JSON, and numbers.
_LONGEST_LINE = 6 * 4096 + 200
_PART = re.compile(r"\.phalanx-[0-9]+(\.[0-9]+)?\.part", re.ASCII)
_BEGUN = re.compile(r"\.phalanx-[0-9a-f]{16}\.begun", re.ASCII)
_PART_KEPT_S, _BEGUN_KEPT_S = 3600.0, 7 * 86_400.0
_SAME = "same"
MOST_ITEMS = 4_000_000
"""A longer list is not made: its answer would be too long."""
_TIME = re.compile(r"([0-9]{1,20}) (-?[0-9]{1,10})", re.ASCII)


class Known(NamedTuple):
    """What the receiver has already: the numbers of the files in a list of `items`, and how many bytes they are.

    `begun` is what it has of others, by their numbers; `places` is where those belong. `twins` are the names that its
    file system takes for earlier ones.
    """

    same: FrozenSet[int] = frozenset()
    bytes: int = 0
    items: int = 0
    begun: Mapping[int, Begun] = MappingProxyType({})
    places: Mapping[int, str] = MappingProxyType({})
    twins: FrozenSet[str] = frozenset()

    def answer(self) -> Dict[str, Any]:
        """Return the answer to the list."""
        numbers = range(self.items if self.same else 0)
        said = {_SAME: "".join("1" if number in self.same else "0" for number in numbers)}
        begun = {str(number): [one.bytes, one.digest] for number, one in self.begun.items()}
        return {**said, "begun": begun} if begun else said

    def at(self, place: str) -> Optional[Begun]:
        """Return the beginning of the file for this place."""
        return next((self.begun[number] for number, other in self.places.items() if other == place), None)

    def put_back(self) -> None:
        """Keep the beginnings that were not used. Raises OSError."""
        for number, place in self.places.items():
            self.begun[number].put_back(place)


NOTHING = Known()


def write_list(out: IO[bytes], items: Sequence[Any]) -> None:
    """Write a line for each of a `carry.Load`'s items.

    Of files: their names, sizes, times, modes, ctimes' ages, and how many bytes are to be sent. Raises OSError.
    """
    now_ns = time.time_ns()
    for item in items:
        line: List[Any] = [item.name] if stat.S_ISDIR(item.mode) else []
        if stat.S_ISREG(item.mode):
            line = [item.name, item.bytes, item.changed_ns, item.mode & 0o777, now_ns - item.placed_ns]
            line.append(item.sent_bytes)
        out.write(json.dumps(line).encode() + b"\n")
    out.flush()


def compare(source: IO[bytes], items: int, target: str, top: str) -> Known:
    """Read a list of this many items, whose names begin with `top`, and find those that are at `target` already.

    The sender may be hostile: no link is followed on the way, and nothing is said of what is not below the target.
    Raises Invalid.
    """
    if items > MOST_ITEMS:
        raise Invalid("is too long")
    directories, same, count, now_ns = set(), set(), 0, time.time_ns()
    begun: Dict[int, Begun] = {}
    places: Dict[int, str] = {}
    twins = _Twins(os.path.dirname(target))
    for number in range(items):
        name, found = _entry(source.readline(_LONGEST_LINE))
        parent, _, last = name.rpartition("/")
        if twins.has(name):
            continue
        if name != top and (parent not in directories or last in ("", ".", "..")):
            continue
        path = target + name[len(top) :]
        if found is None:
            if _is_directory(path):
                directories.add(name)
        elif _has(path, found, now_ns):
            same.add(number)
            count += found[4]
        elif found[0] == found[4] >= LEAST_BYTES:
            one = claim(path, found[0], os.path.join(os.path.dirname(path), part_name(number)))
            if one is not None:
                begun[number], places[number] = one, path
    return Known(frozenset(same), count, items, begun, places, frozenset(twins.found))


class _Twins:
    """Names that differ only in case or in Unicode's forms, on a file system that takes them for one, as macOS's do."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._names: Dict[str, str] = {}
        self._are_one: Optional[bool] = None
        self.found: Set[str] = set()

    def has(self, name: str) -> bool:
        """Whether a name is taken for an earlier one, or is below such a directory."""
        folded = unicodedata.normalize("NFC", name).casefold()
        is_twin = self._names.setdefault(folded, name) != name and self._is_one()
        if is_twin or name.rpartition("/")[0] in self.found:
            self.found.add(name)
        return name in self.found

    def _is_one(self) -> bool:
        if self._are_one is None:
            self._are_one = ignores_case(self._directory)
        return self._are_one


def ignores_case(directory: str) -> bool:
    """Whether a directory's file system takes `a` and `A` for one name; no if nothing can be written there."""
    path = os.path.join(directory, part_name())
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except OSError:
        return False
    try:
        return os.path.lexists(os.path.join(directory, part_name().upper()))
    finally:
        os.unlink(path)


def read_answer(answer: Any, items: Sequence[Any]) -> FrozenSet[int]:
    """Return the numbers of the files that the receiver has, from its answer. Raises Invalid."""
    said = answer.get(_SAME) if isinstance(answer, dict) else None
    if not isinstance(said, str) or len(said) not in (0, len(items)) or not set(said) <= {"0", "1"}:
        raise Invalid("does not say which files are unchanged")
    return frozenset(number for number, one in enumerate(said) if one == "1" and stat.S_ISREG(items[number].mode))


def time_text(changed_ns: int) -> str:
    """Return a file's time and age for its header, which has room for 31 characters."""
    age_ns = time.time_ns() - changed_ns
    return f"{_valid(changed_ns)} {min(max(-_COARSE_NS, age_ns), _COARSE_NS)}"


def set_time(path: str, text: str, otherwise_s: float) -> None:
    """Give a file that came the time of `time_text`. Raises OSError.

    If its content may change without getting another time, it gets one that no list will have.
    """
    found = _TIME.fullmatch(text)
    changed_ns, age_ns = map(int, found.groups()) if found else (int(otherwise_s) * _S, _COARSE_NS)
    # The clock of a file system's server may be ahead.
    is_fresh = -_COARSE_NS < age_ns < (_TICK_NS if changed_ns % _S else _COARSE_NS)
    wanted_ns = _valid(changed_ns) + is_fresh
    os.utime(path, ns=(wanted_ns, wanted_ns))
    if abs(age_ns) < _COARSE_NS and os.stat(path).st_mtime_ns != wanted_ns:
        before_ns = max(0, wanted_ns - _S)
        os.utime(path, ns=(before_ns, before_ns))


def part_name(number: int = -1) -> str:
    """Return the name that a file has until it is whole; with a `number`, that of a beginning that came earlier."""
    return f".phalanx-{os.getpid()}.part" if number < 0 else f".phalanx-{os.getpid()}.{number}.part"


def remove_older_parts(directory: str) -> None:
    """Remove such files of copies that were killed: nothing has written to them for an hour. Raises OSError.

    What a copy left for another stays for a week.
    """
    names = os.listdir(directory)
    for rule, kept_s in ((_PART, _PART_KEPT_S), (_BEGUN, _BEGUN_KEPT_S)):
        for path in (os.path.join(directory, name) for name in filter(rule.fullmatch, names)):
            if os.lstat(path).st_ctime < time.time() - kept_s:
                os.unlink(path)


def _has(path: str, listed: _Listed, now_ns: int) -> bool:
    """Whether this file is there. It gets the mode; its time may be in whole seconds, if its file system has no others.

    What it is not is a link.
    """
    size, changed_ns, mode, age_ns, _ = listed
    try:
        found = os.lstat(path)
        times = (_valid(changed_ns), _valid(changed_ns) // _S * _S)
        if not stat.S_ISREG(found.st_mode) or found.st_size != size or found.st_mtime_ns not in times:
            return False
        if now_ns - found.st_ctime_ns > age_ns + _STARTED_WITHIN_NS:
            return False
        if found.st_mode & 0o777 != mode:
            os.chmod(path, mode)
    except (OSError, ValueError):
        return False
    return True


def _valid(changed_ns: int) -> int:
    return min(max(0, changed_ns), _LATEST_NS)


def _is_directory(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except (OSError, ValueError):
        return False


def _entry(line: bytes) -> Tuple[str, Optional[_Listed]]:
    """Return an item's name and, of a file, its size, time, mode, ctime's age and bytes to send. Raises Invalid."""
    value = parse(line)
    if value == []:
        return "", None  # a link
    if isinstance(value, list) and isinstance(value[0], str):
        if len(value) == 1:
            return value[0], None
        are_numbers = len(value) == 6 and all(type(one) is int for one in value[1:])
        if are_numbers and 0 <= value[3] <= 0o777 and 0 <= value[5] <= value[1] + LONGEST_LINE:
            return value[0], (value[1], value[2], value[3], value[4], value[5])
    raise Invalid("lists something that is no file")
