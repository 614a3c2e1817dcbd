"""Programs of others that judge phalanx and the local cloud, each in an environment of its own in build/."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ports
import pytest

BUILD = Path(__file__).parents[2] / "build/judges"


def installed(*requirements: str) -> Path:
    """Return the directory of programs of an environment with these packages, which is made if it is missing."""
    there = BUILD / "-".join(requirements).replace("[", "-").replace("]", "").replace("==", "-")
    if not there.exists():
        half = there.with_name(f"{there.name}.{os.getpid()}")
        subprocess.run([sys.executable, "-m", "venv", half], check=True)
        pip = [half / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *requirements], check=True)
        half.rename(there)
    return there / "bin"


def npm_package(name: str) -> Path:
    """Return the directory of an npm package, which is unpacked without its dependencies if it is missing."""
    there = BUILD / name.replace("@", "").replace("/", "-")
    if not there.exists():
        if not shutil.which("npm"):
            pytest.skip("npm is not on this machine")
        half = there.with_name(f"{there.name}.{os.getpid()}")
        half.mkdir(parents=True)
        subprocess.run(["npm", "pack", "--silent", name], cwd=half, check=True)
        (archive,) = half.glob("*.tgz")
        shutil.unpack_archive(archive, half)
        half.rename(there)
    return there / "package"


MINISTACK = "ministack==1.5.33"


@contextmanager
def ministack(directory: Path) -> Iterator[str]:
    """Run ministack, an emulator of AWS that shares no line with moto; yield its address."""
    port, program = ports.free_port(), installed(MINISTACK) / "python"
    env = {"PATH": os.environ["PATH"], "HOME": str(directory), "GATEWAY_PORT": str(port)}
    with (directory / "ministack.log").open("wb") as log:
        running = subprocess.Popen(
            [program, "-m", "ministack"], env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    address, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 60
    try:
        while not _answers(f"{address}/_ministack/health"):
            assert time.monotonic() < deadline, (directory / "ministack.log").read_text()
            time.sleep(0.2)
        yield address
    finally:
        running.kill()
        running.wait()


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=1).close()
    except OSError:
        return False
    return True
