"""The format of `follow`'s output: MAGIC, then frames, each a header and its payload."""

from __future__ import annotations

import struct

# kind, stream, process number, payload length, position in the index after it, time in ns since 1970
HEADER = struct.Struct("<BBHIQQ")
MAGIC = b"\0phalanx-follow-1\n"
PROCESS = 1  # JSON line of output/processes
OUTPUT = 2  # raw bytes
ENDED_PROCESS = 3  # the process writes no more
STATE = 4  # JSON of state.json
