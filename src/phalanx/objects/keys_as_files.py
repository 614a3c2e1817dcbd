"""Which objects can be files: keys are any text, and a directory must not be left through one."""

from __future__ import annotations

import re
from typing import Iterable, List

from phalanx.counts import first_of

_LONGEST_BYTES = 255
# "Naming Amazon S3 objects" in the S3 user guide.
_LONGEST_KEY_BYTES = 1024
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


class NamesError(Exception):
    """Objects that can't be files."""


def is_marker(key: str) -> bool:
    """Whether the key is that of a directory, which S3's console makes as an empty object that ends with "/"."""
    return key.endswith("/") or not key


def unfit(name: str, prefix: str = "") -> str:
    """Return why a file of this relative path can't be kept below a prefix, and come back from there; "" if it can."""
    try:
        key = f"{prefix}{name}".encode()
    except UnicodeEncodeError:
        return "is not UTF-8, as keys in S3 are"
    reasons = _reasons(name)
    if len(key) > _LONGEST_KEY_BYTES:
        reasons.append(f"would be a key of {len(key)} bytes; S3 takes {_LONGEST_KEY_BYTES}")
    return reasons[0] if reasons else ""


def require_files(relative: Iterable[str]) -> None:
    """Raise NamesError unless each of these paths can be a file, beside all others."""
    names = list(relative)
    wrong = [f"{name!r} {reason}" for name in names for reason in _reasons(name)]
    wrong += [f"{name!r} would be a file and a directory" for name in _both(names)]
    if wrong:
        raise NamesError(first_of(wrong, "; ", most=3))


def _reasons(name: str) -> List[str]:
    if is_marker(name):
        return ["has content, and ends with '/' as a directory does"]
    parts = name.split("/")
    if name.startswith("/"):
        return ["is absolute"]
    if any(part in ("", ".", "..") for part in parts):
        return ["has a part that is empty, '.' or '..'"]
    if _CONTROL.search(name):
        return ["has control characters"]
    if any(len(part.encode("utf-8", "surrogatepass")) > _LONGEST_BYTES for part in parts):
        return [f"has a part of more than {_LONGEST_BYTES} bytes"]
    return []


def _both(names: List[str]) -> List[str]:
    """Return the names that are also directories of other names."""
    directories = {name[:i] for name in names for i, letter in enumerate(name) if letter == "/"}
    return [name for name in names if name in directories]
