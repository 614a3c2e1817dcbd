"""py-spy, which reads the stacks of Python processes: fetched once by the head, copied to nodes, run only if unchanged.

<shared>/.phalanx/tools/py-spy-VERSION-MACHINE       from the index that pip uses
/var/lib/phalanx/environments/py-spy-VERSION-MACHINE  a node's own copy, for when the shared directory does not answer

Jobs can write both. So each use reads the file once, checks its SHA-256 and runs what it read, from sealed memory.
"""

from __future__ import annotations

import fcntl
import os
from hashlib import sha256

from phalanx.runner.environments import node_copy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Optional, Union

VERSION = "0.4.3"
MISSING = "py-spy is not on the node"
# Of the program in its wheels on PyPI, for glibc.
DIGESTS: Dict[str, str] = {
    "x86_64": "a41205d4925beafd108e1ace85e66c0a1a7adbfcbebcd4441f07848b608886c0",
    "aarch64": "ad6e22882e8dcaced4f0a76fef10d372645cc7b94c48a289ebe1bedb754774ed",
}
_MOST_BYTES = 32 << 20
# F_ADD_SEALS, and its four seals: other processes of this user can't write into the memory.
_ADD_SEALS, _ALL_SEALS = 1033, 15


def directory_of(job_directory: str) -> str:
    """Return the shared directory of tools, beside that of jobs."""
    return os.path.join(os.path.dirname(os.path.dirname(job_directory)), "tools")


def load(directory: str) -> Union[int, str]:
    """Return sealed memory with the program, or MISSING if it is neither on this node nor, unchanged, in `directory`.

    Waits for as long as the shared directory does not answer, where this node has no copy of its own.
    """
    own, shared = os.path.join(node_copy.HOME, file_name()), os.path.join(directory, file_name())
    content = _checked(own)
    if content is None:
        content = _checked(shared)
        if content is None:
            return MISSING
        if os.path.isdir(node_copy.HOME):
            write(own, content)
    memory = os.memfd_create("py-spy", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(memory, content)
    fcntl.fcntl(memory, _ADD_SEALS, _ALL_SEALS)
    return memory


def file_name() -> str:
    """Return its name in a directory of tools."""
    return f"py-spy-{VERSION}-{os.uname().machine}"


def _checked(path: str) -> Optional[bytes]:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        with os.fdopen(fd, "rb") as file:
            content = file.read(_MOST_BYTES)
    except OSError:
        return None
    return content if sha256(content).hexdigest() == DIGESTS.get(os.uname().machine) else None


def write(path: str, content: bytes) -> None:
    """Write a file, whole or not at all; that it can't be written hinders nobody who has the content."""
    beside = f"{path}.{os.getpid()}"
    try:
        with open(beside, "wb") as file:
            file.write(content)
        os.replace(beside, path)
    except OSError:
        return
