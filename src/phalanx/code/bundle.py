"""What is sent to the head: the runner, as one zipapp, and a job's code, as one tar stream."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import marshal
import os
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from phalanx import guest_file
from phalanx.code import cache
from phalanx.code.code_tree import unreadable
from phalanx.runner.files import carry
from phalanx.runner.names import LAST_SENT, LIBRARY

if TYPE_CHECKING:
    import tarfile

    from phalanx.code.code_tree import CodeTree, Entry, LeftOut

_PACKAGE = Path(__file__).parents[1]
# Imported on demand: a starter, which runs on every node, needs neither launchers nor schedulers.
_MAIN = b"""from phalanx.runner.main import entry
def launcher(name):
    from phalanx import launchers
    return launchers.load(name)
def scheduler(name):
    from phalanx import schedulers
    return schedulers.load(name)
entry(launcher, scheduler)
"""
_SEPARATE = ("keeper.py", "rsh_agent.py", LAST_SENT)
_EPOCH = (1980, 1, 1, 0, 0, 0)
_COPY_BYTES = 1 << 20
# Runners of this version and of others that are in use on this machine.
_RUNNERS_KEPT = 4


@dataclass(frozen=True)
class Opening:
    """What a job is and what is sent for it, known before that is sent.

    `in_parts`: of the code, only what has changed is sent. `left_out` is what ignore files keep here. `tasks`: how many
    an array has, each with these ranks (0: no array).
    """

    id: str
    launcher: str
    ranks: int
    nodes: int
    files: int
    bytes: int
    in_parts: bool
    left_out: tuple[LeftOut, ...]
    tasks: int


@dataclass(frozen=True)
class SendProgress:
    """How much of the code has been sent; each `warning` is set once, and so is `opening`."""

    files: int
    bytes: int
    total_bytes: int
    warning: str = ""
    opening: Opening | None = None


def tar(
    documents: Mapping[str, bytes], tree: CodeTree | None, work: str, progress: Callable[[SendProgress], None]
) -> bytes:
    """Pack the code below `work`, then documents (name → content) in their order. Raises JobError for unreadable files.

    The last document proves that the stream is complete: tar does not notice a stream that was cut between two members.
    """
    out = io.BytesIO()
    # GNU's format keeps file names as bytes, valid UTF-8 or not.
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
    """Return the programs in a job's directory that are separate files rather than parts of the runner's zipapp.

    Two of them start faster that way, and the user's own Python runs the others.
    """
    # Without an __init__.py beside it: an installed phalanx takes precedence over a directory without one.
    modules = {f"{LIBRARY}/phalanx/{name}": (_PACKAGE / name).read_bytes() for name in ("torch.py", "shards.py")}
    return {**modules, **{name: (_PACKAGE / "runner" / "starter" / name).read_bytes() for name in _SEPARATE}}


def runner_digest() -> str:
    """Return the SHA-256 of `runner_zip`."""
    return hashlib.sha256(runner_zip()).hexdigest()


def runner_zip() -> bytes:
    """Return the zipapp that runs jobs, for Python 3.9 and later; cached, as compiling it takes 50 ms."""
    sources = _sources()
    kept = cache.cache_directory() / f"runner-{_version(sources)}.pyz"
    try:
        return kept.read_bytes()
    except OSError:
        content = _build(sources)
        # If this fails, it is built each time.
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
    """Add an entry, unless it has vanished since the scan."""
    try:
        try:
            info = carry.member(entry.path, name)
            # The job writes into its copy, also where the code is kept from being changed.
            info.mode |= 0o700 if info.isdir() else 0
            content = guest_file.Content(entry.path, os.O_NOFOLLOW) if info.isreg() else None
        except FileNotFoundError:
            return
        if content is None:
            archive.addfile(info)
            return
        # Use the current length: a log may have grown since the scan.
        info.size = content.size
        padded = guest_file.Padded(content)
        archive.addfile(info, padded)
    except OSError as error:
        raise unreadable(error) from error
    if padded.failure:
        raise unreadable(padded.failure) from padded.failure


def _add_document(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), 0o600
    archive.addfile(info, io.BytesIO(content))


def _add_directory(archive: tarfile.TarFile, name: str) -> None:
    info = tarfile.TarInfo(name)
    info.type, info.mode = tarfile.DIRTYPE, 0o700
    archive.addfile(info)


def _modules() -> list[str]:
    """List the modules that run on nodes for a job, relative to the package."""
    found = [path for room in ("launchers", "schedulers", "runner") for path in _PACKAGE.glob(f"{room}/**/*.py")]
    found += [
        _PACKAGE / "node" / name
        for name in ("__init__.py", "adapters.py", "proc_files.py", "roster.py", "sigv4.py", "validate.py")
    ]
    # Without what only the jobs of `data stage` need.
    found += [path for path in _PACKAGE.glob("objects/*.py") if path.stem != "staging"]
    found += [_PACKAGE / "counts.py", _PACKAGE / "guest_file.py"]
    return sorted(path.relative_to(_PACKAGE).as_posix() for path in found)


def _build(sources: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(zipfile.ZipInfo("__main__.py", _EPOCH), _MAIN)
        archive.writestr(zipfile.ZipInfo("phalanx/__init__.py", _EPOCH), b"")
        for name, source in sources.items():
            # Compressed, as the compiled module beside it is what is read, and the whole zipapp is hashed before use.
            archive.writestr(zipfile.ZipInfo(f"phalanx/{name}", _EPOCH), source, zipfile.ZIP_DEFLATED)
            archive.writestr(zipfile.ZipInfo(f"phalanx/{name}c", _EPOCH), _compiled(name, source))
    return buffer.getvalue()


def _compiled(name: str, source: bytes) -> bytes:
    """Return the module's .pyc, for nodes with this machine's Python; others compile it in 40 ms per process."""
    code = compile(source, f"phalanx/{name}", "exec", dont_inherit=True)
    unchecked_hash = (0b01).to_bytes(4, "little")
    return importlib.util.MAGIC_NUMBER + unchecked_hash + importlib.util.source_hash(source) + marshal.dumps(code)
