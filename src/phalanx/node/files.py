"""Write files atomically, and only when their text differs."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from typing import Optional

_BEGIN = "# phalanx: begin, rewritten with every generation of the roster\n"
_END = "# phalanx: end\n"
_FULL = (errno.ENOSPC, errno.EDQUOT)


def is_full(error: OSError) -> bool:
    """Whether an error says that a disk has no room."""
    return error.errno in _FULL


def read(path: str) -> str:
    """Return the text of a file; "" if it does not exist."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def line(*words: str) -> str:
    """Return a line of a file that another program reads, without what only a longer line could say.

    Raises ValueError for a word with a line break or another control character: the program would read it as several.
    """
    text = " ".join(words)
    if not text.isprintable():
        raise ValueError(f"{text!r:.200} is not one line")
    return text + "\n"


def write(path: str, text: str, mode: int = 0o644, owner: Optional[int] = None, is_synced: bool = False) -> bool:
    """Write `text` to `path`; return True if that changed it. `owner` is a uid (and gid).

    With `is_synced`, the text is on the disk before it gets its name: a power failure leaves the old or the new one.
    Without it, an empty file may be left, which is enough for a file that the next boot writes again. An error, such as
    a full disk, leaves the old text and nothing beside it.
    """
    if os.path.exists(path) and read(path) == text:
        return False
    os.makedirs(os.path.dirname(path), exist_ok=True)
    beside = f"{path}.phalanx-{os.getpid()}"
    try:
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w", errors="surrogateescape") as file:
            file.write(text)
            os.fchmod(file.fileno(), mode)
            if is_synced:
                file.flush()
                os.fsync(file.fileno())
        if owner is not None:
            chown(beside, owner)
        os.rename(beside, path)
    except OSError:
        with suppress(OSError):
            os.unlink(beside)
        raise
    return True


def sync(path: str) -> None:
    """Put on the disk what another program wrote into a file, or the names in a directory."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def enable(name: str, unit: str, target: str, root: str = "") -> None:
    """Enable a systemd service at each boot. Not by systemctl, because systemd may not be running or installed."""
    units = f"{root}/etc/systemd/system"
    write(f"{units}/{name}.service", unit)
    wanted = f"{units}/{target}.target.wants"
    os.makedirs(wanted, exist_ok=True)
    if not os.path.lexists(f"{wanted}/{name}.service"):
        os.symlink(f"../{name}.service", f"{wanted}/{name}.service")


def chown(path: str, owner: int, group: Optional[int] = None) -> None:
    """Change the owner and group of `path`, by default to the same number, unless it has them."""
    group = owner if group is None else group
    found = os.stat(path)
    if (found.st_uid, found.st_gid) != (owner, group):
        os.chown(path, owner, group)


def with_block(text: str, block: str) -> str:
    """Return the text of a shared file with our block replaced or appended; an empty block removes it."""
    rest = without_block(text)
    if not block:
        return rest
    return rest + ("" if rest.endswith("\n") or not rest else "\n") + _BEGIN + block + _END


def add_to_block(path: str, *words: str, root: str = "") -> None:
    """Add a line to our block of a shared file, in place of an earlier one with the same second word."""
    text = read(root + path)
    ours = text.partition(_BEGIN)[2].partition(_END)[0].splitlines(True)
    kept = [one for one in ours if one.split()[1] != words[1]]
    write(root + path, with_block(text, "".join([*kept, line(*words)])), is_synced=True)


def without_block(text: str) -> str:
    """Return the text of a shared file without our block."""
    before, begin, rest = text.partition(_BEGIN)
    return before + rest.partition(_END)[2] if begin else text
