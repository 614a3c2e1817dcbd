"""py-spy, which reads the stacks of Python processes: fetched once by the head, copied to nodes, run only if unchanged.

<shared>/.phalanx/tools/py-spy-VERSION-MACHINE       from the index that pip uses
/var/lib/phalanx/environments/py-spy-VERSION-MACHINE  a node's own copy, for when the shared directory does not answer

Jobs can write both. So each use reads the file once, checks its SHA-256 and runs what it read, from sealed memory.
"""

from __future__ import annotations

import fcntl
import os
import sys

from phalanx.runner.environments import node_copy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Optional, Union

VERSION = "0.4.3"
MISSING = "py-spy is not on the node"
# The wheels on PyPI for glibc, and the program in each.
_WHEELS = (
    "8a4277225f470d394a85cca0cdd944bef87f0097b6f20150a6dd3ac2e92806b8",
    "bbcec46930d464b3bfc142d6d02ade4dd8ad5627823263b3eff0280e80c7c132",
)
_DIGESTS: Dict[str, str] = {
    "x86_64": "a41205d4925beafd108e1ace85e66c0a1a7adbfcbebcd4441f07848b608886c0",
    "aarch64": "ad6e22882e8dcaced4f0a76fef10d372645cc7b94c48a289ebe1bedb754774ed",
}
_MEMBER = f"py_spy-{VERSION}.data/scripts/py-spy"
_MOST_BYTES = 32 << 20
# F_ADD_SEALS, and its four seals: other processes of this user can't write into the memory.
_ADD_SEALS, _ALL_SEALS = 1033, 15
_FETCHED_WITHIN_S = 90


def directory_of(job_directory: str) -> str:
    """Return the shared directory of tools, beside that of jobs."""
    return os.path.join(os.path.dirname(os.path.dirname(job_directory)), "tools")


def load(directory: str) -> Union[int, str]:
    """Return sealed memory with the program, or MISSING if it is neither on this node nor, unchanged, in `directory`.

    Waits for as long as the shared directory does not answer, where this node has no copy of its own.
    """
    own, shared = os.path.join(node_copy.HOME, _name()), os.path.join(directory, _name())
    content = _checked(own)
    if content is None:
        content = _checked(shared)
        if content is None:
            return MISSING
        if os.path.isdir(node_copy.HOME):
            _write(own, content)
    memory = os.memfd_create("py-spy", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(memory, content)
    fcntl.fcntl(memory, _ADD_SEALS, _ALL_SEALS)
    return memory


def fetch(directory: str) -> None:
    """Bring the program into `directory`, from the index that this node's pip uses. Raises OSError with the reason."""
    import subprocess  # here, because starters do not need their 20 ms
    import tempfile  # here, too
    import zipfile  # here, too

    from phalanx.runner.environments.uv_settings import QUIET, plain_variables

    if os.uname().machine not in _DIGESTS:
        raise OSError(f"there is no py-spy for {os.uname().machine}")
    with tempfile.TemporaryDirectory() as place:
        wanted = f"py-spy=={VERSION} {' '.join(f'--hash=sha256:{one}' for one in _WHEELS)}\n"
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
    _write(os.path.join(directory, _name()), content)


def _name() -> str:
    return f"py-spy-{VERSION}-{os.uname().machine}"


def _checked(path: str) -> Optional[bytes]:
    from hashlib import sha256  # here, because most starters do not need its 10 ms

    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        with os.fdopen(fd, "rb") as file:
            content = file.read(_MOST_BYTES)
    except OSError:
        return None
    return content if sha256(content).hexdigest() == _DIGESTS.get(os.uname().machine) else None


def _write(path: str, content: bytes) -> None:
    """Write a file, whole or not at all; that it can't be written hinders nobody who has the content."""
    beside = f"{path}.{os.getpid()}"
    try:
        with open(beside, "wb") as file:
            file.write(content)
        os.replace(beside, path)
    except OSError:
        return
