"""`python manifest.py HOME FACTS`: writes HOME/manifest.json and prints it for the build's log. Runs in the image.

FACTS is a JSON object, to which the versions of all packages are added: those of this Python's environment, and those
of the system, which are on standard input. The environment is then marked as complete, as `phalanx run` marks one.
"""

from __future__ import annotations

import base64
import gzip
import importlib.metadata
import json
import platform
import re
import sys
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

MARK = "phalanx-manifest"
_CHARACTERS = 400
# A hundred times what an image has: whoever may write to the log chooses what it says.
_MOST_BYTES = 16 << 20
_LINE = re.compile(rf"{MARK} (?P<number>\d{{1,6}})/(?P<of>\d{{1,6}}) (?P<part>[A-Za-z0-9+/=]+)")


def main(home: str, facts: str) -> None:
    found = {
        **json.loads(facts),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "packages": {one.metadata["Name"]: one.version for one in importlib.metadata.distributions()},
        "system": dict(line.split() for line in sys.stdin),
    }
    text = written(found)
    Path(home, "manifest.json").write_text(text)
    complete = {"name": found["recipe"], "digest": found["digest"], "python": found["python"], "bytes": 0}
    Path(sys.prefix, ".complete").write_text(json.dumps(complete))
    for line in lines(text):
        sys.stdout.write(f"{line}\n")


def written(contents: dict[str, Any]) -> str:
    """Return a manifest as it is in the image."""
    return json.dumps(contents, sort_keys=True, indent=1) + "\n"


def lines(text: str) -> list[str]:
    """Return the text for a log of lines, in which others may stand between these."""
    packed = base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()
    parts = [packed[start : start + _CHARACTERS] for start in range(0, len(packed), _CHARACTERS)]
    return [f"{MARK} {number}/{len(parts)} {part}" for number, part in enumerate(parts, 1)]


def found_in(log: Iterable[str]) -> str:
    """Return the text whose lines are in a log, in any order and after other words; "" if one is missing or wrong."""
    found = [match for line in log if (match := _LINE.search(line))]
    parts = {int(match["number"]): match["part"] for match in found}
    if not found or len(parts) < int(found[0]["of"]):
        return ""
    unpacking = zlib.decompressobj(16 + zlib.MAX_WBITS)
    try:
        packed = base64.b64decode("".join(parts[number] for number in sorted(parts)))
        text = unpacking.decompress(packed, _MOST_BYTES).decode()
    except (ValueError, zlib.error):
        return ""
    return text if unpacking.eof and not unpacking.unused_data else ""


if __name__ == "__main__":
    main(*sys.argv[1:])
