"""Build an image: mmdebstrap makes the file system, and tar unpacks it with the ids that nodes have."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, NoReturn

from localcloud.daemon import probe
from localcloud.images import distributions, store
from localcloud.images.distributions import DISTRIBUTIONS
from localcloud.images.store import PARTIAL, TREE, Image
from localcloud.nodes import isolation, userns
from localcloud.nodes.machine import Site

Say = Callable[[str], None]

_MODE = "range"
# The layer above an image is a tmpfs, which has the attributes that overlayfs needs since then.
_MIN_LINUX = (6, 6)
_PLAIN_LINE = re.compile(r"^[IWE]: ")
_LAST_LINES = 15
# What the largest image took, and mmdebstrap while it made it, and some.
_IMAGE_BYTES, _WORK_BYTES = 400 << 20, 800 << 20
_ROOM = f"an image takes {_IMAGE_BYTES >> 20} MiB, and its build {_WORK_BYTES >> 20} MiB in $TMPDIR (/tmp)"
_MOST_BYTES = 2000


class CannotBuild(Exception):  # noqa: N818
    """The image can't be built here; the message is for the user: the cause, then the command that fixes it."""


def build(directory: Path, name: str, say: Say) -> Image:
    """Build an image into `directory`, and return it. Raises CannotBuild.

    An image that exists is replaced at the end. If this is interrupted, nothing of the new one is left.
    """
    _require_tools(name)
    directory.mkdir(parents=True, exist_ok=True)
    _require_room(directory)
    store.remove_abandoned(directory, store.remove)
    began_s = time.monotonic()
    with _lock(directory, name), _clean(directory / f"{name}{PARTIAL}") as place:
        say(f"building {name} from {_origin(name)}; this takes some minutes")
        _unpack_into(place / TREE, name, say)
        image = _describe(directory, name, place)
        store.complete(place, image)
    say(f"{name} is built: {image.packages} packages, {image.size_bytes >> 20} MiB, {time.monotonic() - began_s:.0f} s")
    return image


def _require_tools(name: str) -> None:
    if name not in DISTRIBUTIONS:
        raise CannotBuild(f"there is no recipe for an image '{name}'\nknown: {', '.join(DISTRIBUTIONS)}")
    missing = probe.linux_before(_MIN_LINUX, "An image") or probe.try_mode(_MODE)
    if missing:
        raise CannotBuild(f"{missing.what}\n{missing.fix}")
    if not shutil.which("mmdebstrap"):
        raise CannotBuild("mmdebstrap is not installed.\nsudo apt-get install -y --no-install-recommends mmdebstrap")
    if distributions.needs_keyring(DISTRIBUTIONS[name]):
        raise CannotBuild("Debian's keys are not installed.\nsudo apt-get install -y debian-archive-keyring")


def _require_room(directory: Path) -> None:
    """Raise CannotBuild now rather than after minutes."""
    for place, least in ((directory, _IMAGE_BYTES), (Path(tempfile.gettempdir()), _WORK_BYTES)):
        free = shutil.disk_usage(place).free
        if free < least:
            raise CannotBuild(f"the disk of {place} has {free >> 20} MiB free\n{_ROOM}")


def _origin(name: str) -> str:
    distribution = DISTRIBUTIONS[name]
    return ", ".join(distributions.sources(distribution) or [url for url, _suites in distribution.mirrors])


def _mmdebstrap_mode() -> str:
    """Only root may make device files, which the image does not need; `unshare` needs ids in /etc/subuid."""
    return "root" if os.geteuid() == 0 else "unshare"


@contextlib.contextmanager
def _lock(directory: Path, name: str) -> Iterator[None]:
    with store.locked(directory, name) as is_free:
        if not is_free:
            raise CannotBuild(f"another command is building {name}\nwait until it has ended")
        yield


@contextlib.contextmanager
def _clean(place: Path) -> Iterator[Path]:
    """Yield an empty directory, and remove it unless it was renamed."""
    if place.exists():
        store.remove(place)
    place.mkdir()
    try:
        yield place
    finally:
        if place.exists():
            store.remove(place)


def _unpack_into(tree: Path, name: str, say: Say) -> None:
    """Run mmdebstrap, and unpack what it writes. Raises CannotBuild."""
    command = distributions.command(name, _mmdebstrap_mode())
    tree.mkdir()
    root = userns.root_of_nodes(_MODE)
    os.chown(tree, root or -1, root or -1)
    reader, writer = os.pipe()
    with tempfile.TemporaryFile() as errors:
        unpacking = userns.spawn(_MODE, partial(_unpack, tree, reader, writer, errors.fileno()))
        os.close(reader)
        try:
            made, lines = _run(command, distributions.mirrors(DISTRIBUTIONS[name]), writer, say)
        finally:
            os.close(writer)
            unpacked = userns.exit_status(os.waitpid(unpacking, 0)[1])
        errors.seek(0)
        said = errors.read(_MOST_BYTES).decode(errors="replace")
    if made or unpacked:
        _fail(tree, made, lines, unpacked, said)


def _fail(tree: Path, made: int, lines: list[str], unpacked: int, said: str) -> NoReturn:
    """Raise CannotBuild for what mmdebstrap and tar have printed."""
    temporary = Path(tempfile.gettempdir())
    full = store.full_disk(said, tree.parents[1]) or store.full_disk("\n".join(lines), temporary)
    if full:
        raise CannotBuild(f"{full}\n{_ROOM}")
    if made:
        raise CannotBuild("\n".join([f"mmdebstrap ended with exit code {made}:", *lines]))
    raise CannotBuild(f"tar ended with exit code {unpacked}:\n{said}")


def _run(command: list[str], given: str, output: int, say: Say) -> tuple[int, list[str]]:
    """Run mmdebstrap; return its exit code and the last lines of its messages. Ends it when this is interrupted."""
    # A session of its own, with apt and dpkg in it: the terminal's Ctrl-C must not end them one by one.
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=output, stderr=pipe, start_new_session=True)
    assert process.stdin and process.stderr
    try:
        with contextlib.suppress(BrokenPipeError), process.stdin as stdin:
            stdin.write(given.encode())
        lines = _follow(process.stderr, say)
        return process.wait(), lines
    except BaseException:
        # It removes its own directory then.
        os.killpg(process.pid, signal.SIGINT)
        process.wait()
        raise


def _unpack(tree: Path, source: int, writer: int, errors: int) -> int:
    """Unpack a tar stream as root of a node does, so that the files have its ids. Runs in our user namespace."""
    # The stream's end ends this, also after Ctrl-C.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.close(writer)
    # By this directory, since another uid may not enter those above it.
    os.chdir(tree)
    root = userns.root_of_nodes(_MODE)
    site = Site(tree.parent, _MODE, (), (), root)
    isolation.make_for_nodes(site)
    isolation.enter(site, lambda _pid: None)
    tar = ["tar", "--extract", "--numeric-owner", "--preserve-permissions", "--exclude=./dev/*"]
    return subprocess.run(tar, stdin=source, stderr=errors, check=False).returncode


def _follow(stream: IO[bytes], say: Say) -> list[str]:
    """Pass on mmdebstrap's own messages, without those of the programs that it runs; return the last lines of all."""
    began_s = time.monotonic()
    last: list[str] = []
    for line in (raw.decode(errors="replace").rstrip() for raw in stream):
        last = [*last, line][-_LAST_LINES:]
        if _PLAIN_LINE.match(line):
            say(f"[{time.monotonic() - began_s:4.0f} s] {_PLAIN_LINE.sub('', line)}")
    return last


def _describe(directory: Path, name: str, place: Path) -> Image:
    return Image(
        name=name,
        path=str(directory / name),
        built=time.strftime("%Y-%m-%d"),
        size_bytes=store.size_bytes(place / TREE),
        packages=store.packages(place / TREE),
        root=userns.root_of_nodes(_MODE),
    )
