"""The images with a full operating system that local clusters can use: built, listed and removed on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from phalanx.data import table
from phalanx.errors import LocalCloudError


def directory() -> Path:
    """Return where images are kept: below $XDG_DATA_HOME, because all local clouds of this user share them."""
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base).absolute() / "phalanx" / "images"


def local_name(alias: str | None) -> str:
    """Return the name under which the image of an alias is built here; "" for images of other clouds."""
    return table("images")["images"].get(alias or "", {}).get("local", "")


def buildable() -> list[str]:
    """Return the names of the images that can be built here."""
    return [row["local"] for row in table("images")["images"].values() if "local" in row]


def is_built(name: str) -> bool:
    return (directory() / name / "image.json").exists()


def require(alias: str, name: str) -> None:
    """Raise LocalCloudError unless the image is built."""
    if not is_built(name):
        raise LocalCloudError(
            f"image: {alias} is not built on this machine",
            f"`phalanx local image build {name}` builds it, once, in about four minutes.",
        )


def run(*arguments: str) -> Any:
    """Run a command on images, with its progress on standard error; return its answer. Raises LocalCloudError."""
    argv = [sys.executable, "-m", "phalanx.localcloud", "image", "--images", str(directory()), *arguments]
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    try:
        printed, _ = process.communicate()
    except KeyboardInterrupt:
        # The terminal's Ctrl-C has reached it, too: it removes what it has made so far.
        process.wait()
        raise
    answer = json.loads(printed or "{}")
    if process.returncode:
        message, _, hint = answer.get("message", f"it ended with status {process.returncode}").partition("\n")
        raise LocalCloudError(message, hint)
    return answer
