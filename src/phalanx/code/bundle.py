"""What goes over to the head: the runner, as one zipapp, and a job's code, as one tar stream."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from phalanx.code import cache
from phalanx.runner.names import LAST_SENT

if TYPE_CHECKING:
    import tarfile

    from phalanx.code.code_tree import CodeTree, Entry

_PACKAGE = Path(__file__).parents[1]
# A starter, of which every node has one, needs neither launchers nor schedulers.
_MAIN = b"""from phalanx.runner.main import entry
def launcher(name):
    from phalanx import launchers
    return launchers.load(name)
def scheduler(name):
    from phalanx import schedulers
    return schedulers.load(name)
entry(launcher, scheduler)
"""
_ALONE = ("keeper.py", "rsh_agent.py", LAST_SENT)
_EPOCH = (1980, 1, 1, 0, 0, 0)
_COPY_BYTES = 1 << 20
# Of this version and of others that a person may use beside it.
_RUNNERS_KEPT = 4


@dataclass(frozen=True)
class SendProgress:
    """How much of the code has gone over; `warning` is set once, when there is something to say about it."""

    files: int
    bytes: int
    total_bytes: int
    warning: str = ""


def tar(
    documents: Mapping[str, bytes], tree: CodeTree | None, work: str, progress: Callable[[SendProgress], None]
) -> bytes:
    """The code below `work`, then documents (name → content) in their order. Raises JobError for an unreadable file.

    The last document's presence says that all has come: tar takes what was cut off between two members for whole.
    """
    # Here, because a job's runner is begun before its code is looked at.
    import tarfile

    out = io.BytesIO()
    # GNU's format keeps file names as the bytes that they are, valid UTF-8 or not.
    with tarfile.open(
        fileobj=out,
        mode="w|",
        format=tarfile.GNU_FORMAT,
        encoding="utf-8",
        errors="surrogateescape",
        bufsize=_COPY_BYTES,
    ) as archive:
        _add_directory(archive, work)
        entries = tree.entries if tree else ()
        sent, total = 0, sum(entry.bytes for entry in entries)
        for number, entry in enumerate(entries, 1):
            _add_entry(archive, entry, f"{work}/{entry.name}")
            sent += entry.bytes
            progress(SendProgress(number, sent, total))
        for name, content in documents.items():
            _add_document(archive, name, content)
    return out.getvalue()


def programs() -> dict[str, bytes]:
    """Programs of a job's directory that are files of their own, by name, beside the runner's zipapp.

    Two start faster so, and the third is run by the user's own Python.
    """
    return {name: (_PACKAGE / "runner" / "starter" / name).read_bytes() for name in _ALONE}


def runner_digest() -> str:
    """SHA-256 of `runner_zip`."""
    return hashlib.sha256(runner_zip()).hexdigest()


def runner_zip() -> bytes:
    """The zipapp that runs jobs, for any Python from 3.9 on; kept by its sources' hash, as compiling takes 50 ms."""
    sources = _sources()
    kept = cache.cache_directory() / f"runner-{_version(sources)}.pyz"
    try:
        return kept.read_bytes()
    except OSError:
        content = _build(sources)
        # Without a place for it, it is built each time.
        cache.keep(kept, content, _RUNNERS_KEPT)
        return content


def _sources() -> dict[str, bytes]:
    return {name: (_PACKAGE / name).read_bytes() for name in _modules()}


def _version(sources: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256(importlib.util.MAGIC_NUMBER + _MAIN)
    for name, source in sources.items():
        digest.update(f"{name}\0{len(source)}\0".encode() + source)
    return digest.hexdigest()[:24]


def _add_entry(archive: tarfile.TarFile, entry: Entry, name: str) -> None:
    """Add it, unless it has vanished since it was looked at."""
    from phalanx.code.code_tree import unreadable

    try:
        info = archive.gettarinfo(entry.path, name)
        file = Path(entry.path).open("rb") if info.isreg() else None  # noqa: SIM115 - closed below
    except FileNotFoundError:
        return
    except PermissionError as error:
        raise unreadable(error) from error
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    if file is None:
        archive.addfile(info)
        return
    with file:
        # Its present length counts: a log may have grown since it was looked at.
        info.size = os.fstat(file.fileno()).st_size
        archive.addfile(info, _Padded(file))


class _Padded(io.RawIOBase):
    """A file that gives zeros when it turns out shorter than announced (it was cut while it was sent)."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        return data + b"\0" * (size - len(data))


def _add_document(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    from tarfile import TarInfo

    info = TarInfo(name)
    info.size, info.mode = len(content), 0o600
    archive.addfile(info, io.BytesIO(content))


def _add_directory(archive: tarfile.TarFile, name: str) -> None:
    from tarfile import DIRTYPE, TarInfo

    info = TarInfo(name)
    info.type, info.mode = DIRTYPE, 0o700
    archive.addfile(info)


def _modules() -> list[str]:
    """Paths below the package of what runs on nodes for a job."""
    found = [path for room in ("launchers", "schedulers", "runner") for path in _PACKAGE.glob(f"{room}/**/*.py")]
    found += [_PACKAGE / "node" / name for name in ("__init__.py", "roster.py", "validate.py")]
    return sorted(path.relative_to(_PACKAGE).as_posix() for path in found)


def _build(sources: Mapping[str, bytes]) -> bytes:
    import zipfile

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(zipfile.ZipInfo("__main__.py", _EPOCH), _MAIN)
        archive.writestr(zipfile.ZipInfo("phalanx/__init__.py", _EPOCH), b"")
        for name, source in sources.items():
            # Rarely read, as the compiled module is beside it; and all of the zipapp is hashed before each use.
            archive.writestr(zipfile.ZipInfo(f"phalanx/{name}", _EPOCH), source, zipfile.ZIP_DEFLATED)
            archive.writestr(zipfile.ZipInfo(f"phalanx/{name}c", _EPOCH), _compiled(name, source))
    return buffer.getvalue()


def _compiled(name: str, source: bytes) -> bytes:
    """The module's .pyc, for nodes with the Python of this machine (others compile the source: 40 ms a process)."""
    import marshal

    code = compile(source, f"phalanx/{name}", "exec", dont_inherit=True)
    unchecked_hash = (0b01).to_bytes(4, "little")
    return importlib.util.MAGIC_NUMBER + unchecked_hash + importlib.util.source_hash(source) + marshal.dumps(code)
