"""Brings the Python that a recipe allows and no node has: uv installs one on the shared directory, for all nodes.

<shared>/.phalanx/uv/         uv, where the head has none
<shared>/.phalanx/pythons/    builds of CPython by python-build-standalone, from GitHub or a mirror of it
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import time
from typing import IO, TYPE_CHECKING, Callable, Dict, Mapping, Sequence

from phalanx.runner.environments.interpreters import Interpreter, ask
from phalanx.runner.environments.uv_settings import QUIET, plain_variables

if TYPE_CHECKING:
    from phalanx.runner.files.job_record import Environment

UV_VERSION = "0.13.9"
SETTINGS = "/etc/uv/uv.toml"
"""uv's settings for all users of a machine, which may name a mirror; written by an image or by `boot:`."""
_FIND_TIMEOUT_S = 60
PROGRAM_TIMEOUT_S = 600.0
"""For each program that `bring` runs: uv downloads 30 MB, and may make nodes wait for a mirror that does not answer."""

# Each holds the lock for at most three programs.
_LOCKED_WITHIN_S = 3 * PROGRAM_TIMEOUT_S
_LOOK_EVERY_S = 0.5

Run = Callable[[Sequence[str], Mapping[str, str], str], None]


def bring(shared: str, wanted: Environment, base: Interpreter, run: Run) -> Interpreter | None:
    """Return a Python that the recipe allows, and install it if need be; None if it does not work here.

    `shared` is .phalanx on the shared directory; `base` the image's own Python; `run(argv, env, name)` runs a program
    and raises if it fails. Variables of `--build-env` may name a mirror (UV_PYTHON_INSTALL_MIRROR), and so
    may SETTINGS.
    """
    pythons = os.path.join(shared, "pythons")
    os.makedirs(pythons, mode=0o700, exist_ok=True)
    env = _variables(pythons, wanted.variables)
    with open(f"{pythons}.lock", "w") as held:
        _lock(held)
        uv = shutil.which("uv") or _install_uv(os.path.join(shared, "uv"), base, env, run)
        run([uv, "python", "install", wanted.python], env, "uv python install")
    return ask(_find(uv, wanted.python, env))


def _lock(held: IO[str]) -> None:
    """Lock the file. Raises TimeoutError."""
    end, is_said = time.monotonic() + _LOCKED_WITHIN_S, False
    while True:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > end:
                why = f"another job has held it for {_LOCKED_WITHIN_S:g} s, to install a Python"
                raise TimeoutError(errno.ETIMEDOUT, why, held.name) from None
        if not is_said:
            print("another job installs a Python: waiting for it", flush=True)
            is_said = True
        time.sleep(_LOOK_EVERY_S)


def _variables(pythons: str, chosen: Mapping[str, str]) -> Dict[str, str]:
    own = {"HOME": pythons, "UV_PYTHON_INSTALL_DIR": pythons, "UV_PYTHON_INSTALL_BIN": "0"}
    # Either way without those of the user and of the directory, which an earlier job may have written.
    settings = {"UV_CONFIG_FILE": SETTINGS} if os.path.exists(SETTINGS) else {"UV_NO_CONFIG": "1"}
    return {**plain_variables(), **QUIET, **own, **settings, **chosen}


def _install_uv(place: str, base: Interpreter, env: Mapping[str, str], run: Run) -> str:
    """Install uv into an environment of its own, from the index that pip uses, and return its path."""
    uv = os.path.join(place, "bin", "uv")
    if not os.path.exists(uv):
        pip = [os.path.join(place, "bin", "python"), "-I", "-m", "pip", "install", "--no-compile", f"uv=={UV_VERSION}"]
        run([base.base, "-I", "-m", "venv", "--clear", place], env, "python -m venv")
        run(pip, env, "pip install uv")
    return uv


def _find(uv: str, specifier: str, env: Mapping[str, str]) -> str:
    find = [uv, "python", "find", "--managed-python", "--no-python-downloads", specifier]
    done = subprocess.run(find, env=dict(env), capture_output=True, text=True, timeout=_FIND_TIMEOUT_S, check=False)
    return done.stdout.strip()
