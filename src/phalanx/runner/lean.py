"""JSON, sockets' file descriptors and prctl from the C halves of `json`, `socket` and `ctypes`.

The public halves compile regular expressions and make enums when they are imported: 20 ms of CPU for each starter, and
every node of every job has one. A starter's other modules use the C halves of `signal` and `socket`, too. The C half of
`json` is not a stable interface: where it takes other arguments, the public half is used.
"""

from __future__ import annotations

import _socket
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Tuple

_FD_BYTES = 4
_SAMPLE = {"a": [1, 2.5, None, True, "\n"], "b": {}}


class _Strict:
    """The options that `json.loads` uses by default."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float
    memo: Dict[str, str] = {}  # noqa: RUF012


def _refuse(value: object) -> Any:
    raise TypeError(f"{type(value).__name__} has no JSON")


def _from_c() -> Tuple[Callable[[str], Any], Callable[[Any], str]]:
    """Return a reader and a writer. Raises when this Python's C half differs from that of 3.9 to 3.14."""
    import _json

    scan: Any = _json.make_scanner(_Strict)  # pyright: ignore[reportArgumentType]
    encode: Any = _json.make_encoder(None, _refuse, _json.encode_basestring_ascii, None, ": ", ", ", False, False, True)

    def read(text: str) -> Any:
        try:
            value, end = scan(text, 0)
        except StopIteration:
            raise ValueError(f"not JSON: {text[:200]!r}") from None
        if text[end:].strip():
            raise ValueError(f"more than one value: {text[end:][:200]!r}")
        return value

    def write(value: Any) -> str:
        return "".join(encode(value, 0))

    if read(write(_SAMPLE)) != _SAMPLE:
        raise TypeError("the C half of json writes something else")
    return read, write


def _from_python() -> Tuple[Callable[[str], Any], Callable[[Any], str]]:
    import json

    return json.loads, json.dumps


try:
    _read, _write = _from_c()
except (ImportError, AttributeError, TypeError, ValueError):
    _read, _write = _from_python()


def loads(data: bytes) -> Any:
    """Return the value of a JSON text that `dumps` (or `json.dumps`) wrote. Raises ValueError."""
    return _read(data.decode())


def dumps(value: Any) -> bytes:
    """Return the value as JSON, as `json.dumps` writes it. Raises TypeError."""
    return _write(value).encode()


def receive(connection: _socket.socket, most_bytes: int, most_fds: int) -> Tuple[bytes, List[int]]:
    """Return a message of a unix socket and its file descriptors, as `socket.recv_fds` does. Raises OSError."""
    space = _socket.CMSG_LEN(most_fds * _FD_BYTES)
    message, ancillary, _, _ = connection.recvmsg(most_bytes, space)
    fds: List[int] = []
    for level, kind, data in ancillary:
        if (level, kind) == (_socket.SOL_SOCKET, _socket.SCM_RIGHTS):
            whole = len(data) - len(data) % _FD_BYTES
            fds += [int.from_bytes(data[at : at + _FD_BYTES], sys.byteorder) for at in range(0, whole, _FD_BYTES)]
    return message, fds
