"""JSON, sockets' file descriptors and prctl from the C halves of `json`, `socket` and `ctypes`.

The public halves compile regular expressions and make enums when they are imported: 20 ms of CPU for each starter, and
every node of every job has one. The signals and sockets of what a starter imports are the C halves, too.
"""

from __future__ import annotations

import _json
import _socket
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Tuple

_FD_BYTES = 4


class _Strict:
    """What `json.loads` goes by when it is given no options."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float
    memo: dict[str, str] = {}  # noqa: RUF012


def _refuse(value: object) -> Any:
    raise TypeError(f"{type(value).__name__} has no JSON")


_scan = _json.make_scanner(_Strict)  # pyright: ignore[reportArgumentType]
_encode = _json.make_encoder(None, _refuse, _json.encode_basestring_ascii, None, ": ", ", ", False, False, True)


def loads(data: bytes) -> Any:
    """The value of a JSON text that `dumps` (or `json.dumps`) wrote. Raises ValueError."""
    text = data.decode()
    try:
        value, end = _scan(text, 0)
    except StopIteration:
        raise ValueError(f"not JSON: {text[:200]!r}") from None
    if text[end:].strip():
        raise ValueError(f"more than one value: {text[end:][:200]!r}")
    return value


def dumps(value: Any) -> bytes:
    """JSON, as `json.dumps` writes it. Raises TypeError."""
    return "".join(_encode(value, 0)).encode()


def receive(connection: _socket.socket, most_bytes: int, most_fds: int) -> Tuple[bytes, List[int]]:
    """A message of a unix socket and the file descriptors that came with it, as `socket.recv_fds`. Raises OSError."""
    space = _socket.CMSG_LEN(most_fds * _FD_BYTES)
    message, ancillary, _, _ = connection.recvmsg(most_bytes, space)
    fds: List[int] = []
    for level, kind, data in ancillary:
        if (level, kind) == (_socket.SOL_SOCKET, _socket.SCM_RIGHTS):
            whole = len(data) - len(data) % _FD_BYTES
            fds += [int.from_bytes(data[at : at + _FD_BYTES], sys.byteorder) for at in range(0, whole, _FD_BYTES)]
    return message, fds
