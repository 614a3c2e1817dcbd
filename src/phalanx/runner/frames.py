"""Binary frames between the head's runner and a node's starter: a 12-byte header, then the payload.

Every payload is bytes: output needs no decoding, and costs one copy. Control frames carry JSON.
"""

from __future__ import annotations

import json
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterator, Tuple

    Frame = Tuple[int, int, int, bytes]

# Runner → starter.
# JSON {"commands": [[…], …], "env", "ports": […], "sync_dir", "imports", "step"}: are the commands here, and the ports
# free?
CHECK = 1
SPAWN = 2  # JSON {"argv", "env", "ranks", "harmless", "is_rank", "reads_stdin"}: start it as this process number
TERMINATE = 3  # send SIGTERM to the spawned processes, in the order of their start
END = 4  # end everything that is left of the job, then REPORT and exit
KICK = 5  # end the ranks but not their engine, so that it restarts them on the nodes that are left
ANSWER = 6  # JSON {"code"}: how the daemon ended that the ASK with this number requested
NOTICE = 7  # AWS takes a node of the job back: signal the ranks (starter.rank_signal)
LOOK = 8  # send STACKS
GLANCE = 9  # send DOING of this process, which has written nothing
# Starter → runner.
CHECKED = 10  # JSON {"problem", "code", "taken": […], "boot_id"}: "" when all is well
RANK = 11  # JSON {"label"}: a keeper announced one of the user's processes
OUTPUT = 12  # bytes that the process wrote to `stream`
# JSON {"code", "at", "ending", "oom_kills"}: exit code, or minus the signal's number; its time; whether TERMINATE came
# before; after SIGKILL, how many processes the kernel has killed for lack of memory since the starter began (null:
# unknown)
EXIT = 13
REPORT = 14  # JSON {"killed": [...], "left": [...]}
LEAVING = 15  # JSON {"reason"}: the starter gives up, and ends all its processes
ASK = 16  # JSON {"node", "command"}: an engine on this node requests this daemon there
TROUBLE = 17  # JSON {"reason", "is_loss"}: data mounted from S3 ended, or (no loss) files are not there
SAVING = 18  # nothing of the job is left, and REPORT waits for files that the agent saves in S3
UNSURE = 19  # JSON {"reason"}: files may not be in S3, which nobody can know
# JSON {"tool": why there are no stacks, or "", "processes": [{"number", "pid", …}, …]}: what each rank here does
STACKS = 21
LOAD = 22  # a packed load.Load: what the job and its node did in the last seconds
# JSON {"ranks": [[number, step, rate, {name: value}], …], "problem"}: how far ranks are (starter.counting)
PROGRESS = 24
DOING = 23  # JSON {"text"}: what a process has done since its start (starter.doing)
# Both ways: a sign of life. Any other frame is one, too.
BEAT = 20

STDOUT = 1
STDERR = 2

# The first bytes of the starter's stdout: what a login script prints before them is not read as frames.
MAGIC = b"\0phalanx-starter-1\n"
# The starter assigns numbers from here on (ranks that keepers announce); the runner assigns lower ones.
FIRST_RANK_NUMBER = 1 << 20

_HEADER = struct.Struct("<BBHII")
_LONGEST_PAYLOAD = 16 << 20
# A body must fit into the job's state.
_LONGEST_BODY = 1 << 20
_LARGEST_SIGNAL = 64
_LARGEST_COUNT = 1 << 32
_LARGEST_PORT = 65535


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_time(value: Any) -> bool:
    return type(value) in (int, float)


def _is_truth(value: Any) -> bool:
    return isinstance(value, bool)


def _is_code(value: Any) -> bool:
    return type(value) is int and -_LARGEST_SIGNAL <= value <= 255


def _is_count_or_null(value: Any) -> bool:
    return value is None or (type(value) is int and 0 <= value <= _LARGEST_COUNT)


def _are_ports(values: Any) -> bool:
    return isinstance(values, list) and all(type(one) is int and 0 <= one <= _LARGEST_PORT for one in values)


def _are_processes(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(one, dict) and type(one.get("number")) is int for one in values)


def _are_ranks(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(one, list) and one and type(one[0]) is int for one in values)


def _are_texts(values: Any) -> bool:
    return isinstance(values, list) and all(map(_is_text, values))


_BODIES = {
    CHECKED: {"problem": _is_text, "code": _is_code, "taken": _are_ports, "boot_id": _is_text},
    RANK: {"label": _is_text},
    EXIT: {"code": _is_code, "at": _is_time, "ending": _is_truth, "oom_kills": _is_count_or_null},
    REPORT: {"ended": _are_texts, "killed": _are_texts, "left": _are_texts},
    LEAVING: {"reason": _is_text},
    ASK: {"node": _is_text, "command": _is_text},
    TROUBLE: {"reason": _is_text, "is_loss": _is_truth},
    UNSURE: {"reason": _is_text},
    DOING: {"text": _is_text},
    STACKS: {"tool": _is_text, "processes": _are_processes},
    PROGRESS: {"ranks": _are_ranks, "problem": _is_text},
}
_LONGEST_PREAMBLE = 64 << 10


class ChannelBrokenError(Exception):
    """The bytes received are not frames; the message shows them."""


def pack(kind: int, process: int = 0, payload: bytes = b"", stream: int = 0) -> bytes:
    """Return one frame as bytes."""
    return _HEADER.pack(kind, stream, 0, process, len(payload)) + payload


def pack_json(kind: int, body: Any, process: int = 0) -> bytes:
    """Return a control frame as bytes."""
    return pack(kind, process, json.dumps(body).encode())


def body_of(kind: int, payload: bytes) -> Any:
    """Return the body of a starter's control frame. Raises ChannelBrokenError for a missing or invalid field."""
    try:
        body = json.loads(payload[:_LONGEST_BODY])
        if all(is_so(body[name]) for name, is_so in _BODIES[kind].items()):
            return body
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise ChannelBrokenError(f"an invalid frame of kind {kind}: {payload[:60]!r}")


class FrameReader:
    """Turns pieces of bytes into frames (kind, stream, process, payload).

    With `preamble`, everything up to MAGIC is skipped and kept in `.preamble` for error messages.
    """

    def __init__(self, preamble: bool = False) -> None:
        self.preamble = b""
        self._expect_magic = preamble
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that are now complete. Raises ChannelBrokenError for an invalid header."""
        self._data += data
        if self._expect_magic and not self._skip_preamble():
            return
        start = 0
        try:
            while len(self._data) - start >= _HEADER.size:
                kind, stream, _, process, length = _HEADER.unpack_from(self._data, start)
                if length > _LONGEST_PAYLOAD:
                    raise ChannelBrokenError(f"a frame of {length} bytes")
                end = start + _HEADER.size + length
                if end > len(self._data):
                    return
                payload = bytes(self._data[start + _HEADER.size : end])
                start = end
                yield kind, stream, process, payload
        finally:
            del self._data[:start]

    def _skip_preamble(self) -> bool:
        before, magic, after = bytes(self._data).partition(MAGIC)
        self.preamble = before
        if not magic:
            if len(before) > _LONGEST_PREAMBLE:
                raise ChannelBrokenError(f"the node's login scripts print without end: {before[:200]!r}")
            return False
        self._expect_magic = False
        self._data = bytearray(after)
        return True
