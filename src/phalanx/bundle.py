"""What goes over to the head with a job: the runner as one zipapp, and the user's code, as one tar stream."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
import stat
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from phalanx.errors import JobError
from phalanx.node.process import RUNNER

# Never part of the code: other tools' state, and what is made again from the code.
IGNORED = frozenset(
    {
        *(".git", ".hg", ".svn", ".venv", "__pycache__", "node_modules", ".phalanx", ".mypy_cache", ".pytest_cache"),
        *(".ruff_cache", ".tox", ".nox", ".ipynb_checkpoints", ".terraform", ".DS_Store", ".idea", ".vscode"),
    }
)
MOST_BYTES = 2 << 30
WARN_BYTES = 200 << 20

_PACKAGE = Path(__file__).parent
_MAIN = b"""from phalanx.launchers import load
from phalanx.node.runner.main import entry
entry(load)
"""
_EPOCH = (1980, 1, 1, 0, 0, 0)
_COPY_BYTES = 1 << 20


@dataclass(frozen=True)
class SendProgress:
    """How much of the code has gone over; `warning` is set once, when there is something to say about it."""

    files: int
    bytes: int
    total_bytes: int
    warning: str = ""


@dataclass(frozen=True)
class Entry:
    """One file, directory or symbolic link: where it is, and its name in the copy."""

    path: Path
    name: str
    bytes: int


@dataclass(frozen=True)
class CodeTree:
    """Everything of a directory that is sent."""

    directory: Path
    entries: tuple[Entry, ...]

    @property
    def bytes(self) -> int:
        return sum(entry.bytes for entry in self.entries)

    @property
    def warning(self) -> str:
        if self.bytes <= WARN_BYTES:
            return ""
        return f"{_size(self.bytes)} of code go over, most of it {self._largest()}; data belong on the shared directory"

    def _largest(self) -> str:
        largest = sorted(self.entries, key=lambda entry: entry.bytes, reverse=True)[:3]
        return ", ".join(f"{entry.name!r} ({_size(entry.bytes)})" for entry in largest)

    def check(self) -> None:
        """Raises JobError when it is too large to be code."""
        if self.bytes > MOST_BYTES:
            raise JobError(
                f"{self.directory} holds {_size(self.bytes)}; at most {_size(MOST_BYTES)} go over with a job. "
                f"The largest: {self._largest()}",
                "Run from the directory that holds the code alone, and copy data to the shared directory once.",
            )


def scan(directory: Path) -> CodeTree:
    """Look at everything below directory, but IGNORED names and virtual environments. Raises JobError."""
    if not directory.is_dir():
        raise JobError(f"{directory} is not a directory", "It is what goes over with the job.")
    try:
        return CodeTree(directory, tuple(_entries(directory, "")))
    except OSError as error:
        raise JobError(
            f"can't read {error.filename!r}: {error.strerror}", "Every file of the code must be readable."
        ) from error


def write_tar(
    out: IO[bytes], documents: Mapping[str, bytes], tree: CodeTree, work: str, progress: Callable[[SendProgress], None]
) -> None:
    """Write documents (name → content), then the code below `work`. Raises JobError for a file that can't be read,
    OSError when `out` breaks."""
    # GNU's format keeps file names as the bytes that they are, valid UTF-8 or not.
    with tarfile.open(
        fileobj=out,
        mode="w|",
        format=tarfile.GNU_FORMAT,
        encoding="utf-8",
        errors="surrogateescape",
        bufsize=_COPY_BYTES,
    ) as tar:
        for name, content in documents.items():
            _add_document(tar, name, content)
        _add_directory(tar, work)
        sent, total = 0, tree.bytes
        for number, entry in enumerate(tree.entries, 1):
            _add_entry(tar, entry, f"{work}/{entry.name}")
            sent += entry.bytes
            progress(SendProgress(number, sent, total))


def runner_files() -> dict[str, bytes]:
    """The runner's part of a job's directory, by file name; two programs are files of their own to start faster."""
    alone = {name: (_PACKAGE / "node" / "runner" / name).read_bytes() for name in ("keeper.py", "agent.py")}
    return {RUNNER: runner_zip(), **alone}


def runner_zip() -> bytes:
    """The zipapp that runs jobs, for any Python from 3.9 on; kept by its sources' hash, as compiling takes 50 ms."""
    sources = {name: (_PACKAGE / name).read_bytes() for name in _modules()}
    digest = hashlib.sha256(importlib.util.MAGIC_NUMBER)
    for name, source in sources.items():
        digest.update(f"{name}\0{len(source)}\0".encode() + source)
    kept = _cache_directory() / f"runner-{digest.hexdigest()[:24]}.pyz"
    try:
        return kept.read_bytes()
    except OSError:
        content = _build(sources)
        _keep(kept, content)
        return content


def _entries(directory: Path, prefix: str) -> Iterator[Entry]:
    with os.scandir(directory) as found:
        items = sorted(found, key=lambda item: item.name)
    for item in items:
        if item.name in IGNORED or item.name.endswith(".pyc"):
            continue
        path, name = Path(item.path), prefix + item.name
        mode = item.stat(follow_symlinks=False).st_mode
        if stat.S_ISDIR(mode):
            # A virtual environment is of this machine, whatever its name.
            if not (path / "pyvenv.cfg").exists():
                yield Entry(path, name, 0)
                yield from _entries(path, name + "/")
        elif stat.S_ISLNK(mode):
            yield Entry(path, name, 0)
        elif stat.S_ISREG(mode):
            yield Entry(path, name, item.stat(follow_symlinks=False).st_size)


def _add_entry(tar: tarfile.TarFile, entry: Entry, name: str) -> None:
    try:
        info = tar.gettarinfo(str(entry.path), name)
        info.uid = info.gid = 0
        info.uname = info.gname = ""
        if not info.isreg():
            tar.addfile(info)
            return
        with entry.path.open("rb") as file:
            # Its present length counts: a log may have grown since it was looked at.
            info.size = os.fstat(file.fileno()).st_size
            tar.addfile(info, _Padded(file))
    except (FileNotFoundError, PermissionError) as error:
        raise JobError(
            f"can't read {str(entry.path)!r}: {error.strerror}", "Every file of the code must be readable."
        ) from error


class _Padded(io.RawIOBase):
    """A file that gives zeros when it turns out shorter than announced (it was cut while it was sent)."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        return data + b"\0" * (size - len(data))


def _add_document(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), 0o600
    tar.addfile(info, io.BytesIO(content))


def _add_directory(tar: tarfile.TarFile, name: str) -> None:
    info = tarfile.TarInfo(name)
    info.type, info.mode = tarfile.DIRTYPE, 0o700
    tar.addfile(info)


def _modules() -> list[str]:
    """Paths below the package of what runs on nodes for a job."""
    found = [*_PACKAGE.glob("launchers/*.py"), *_PACKAGE.glob("node/runner/*.py")]
    found += [_PACKAGE / "node" / name for name in ("__init__.py", "process.py", "roster.py")]
    return sorted(path.relative_to(_PACKAGE).as_posix() for path in found)


def _build(sources: Mapping[str, bytes]) -> bytes:
    import zipfile

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(zipfile.ZipInfo("__main__.py", _EPOCH), _MAIN)
        archive.writestr(zipfile.ZipInfo("phalanx/__init__.py", _EPOCH), b"")
        for name, source in sources.items():
            archive.writestr(zipfile.ZipInfo(f"phalanx/{name}", _EPOCH), source)
            archive.writestr(zipfile.ZipInfo(f"phalanx/{name}c", _EPOCH), _compiled(name, source))
    return buffer.getvalue()


def _compiled(name: str, source: bytes) -> bytes:
    """The module's .pyc, for nodes with the Python of this machine (others compile the source: 40 ms a process)."""
    import marshal

    code = compile(source, f"phalanx/{name}", "exec", dont_inherit=True)
    unchecked_hash = (0b01).to_bytes(4, "little")
    return importlib.util.MAGIC_NUMBER + unchecked_hash + importlib.util.source_hash(source) + marshal.dumps(code)


def _cache_directory() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "phalanx"


def _keep(path: Path, content: bytes) -> None:
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_bytes(content)
        beside.replace(path)
    except OSError:
        pass  # no cache, then: it is built each time


def _size(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"
