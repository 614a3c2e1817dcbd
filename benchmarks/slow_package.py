"""A package whose build waits, so that pip can be met in the middle of its work."""

from __future__ import annotations

from pathlib import Path

_PROJECT = '[build-system]\nrequires = []\nbuild-backend = "slow"\nbackend-path = ["."]\n'
_BACKEND = """import os, time, zipfile

def build_wheel(directory, settings=None, metadata=None):
    began = time.monotonic()
    while {condition}:
        time.sleep(0.05)
    info = "slow-1.0.dist-info"
    with zipfile.ZipFile(os.path.join(directory, "slow-1.0-py3-none-any.whl"), "w") as wheel:
        wheel.writestr(info + "/METADATA", "Metadata-Version: 2.1\\nName: slow\\nVersion: 1.0\\n")
        wheel.writestr(info + "/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(info + "/RECORD", "")
    return "slow-1.0-py3-none-any.whl"
"""


def write(directory: Path, waits_while: str) -> None:
    """Write the package; its build waits while this expression of Python is true. It may use os, time and `began`."""
    directory.mkdir()
    (directory / "pyproject.toml").write_text(_PROJECT)
    (directory / "slow.py").write_text(_BACKEND.format(condition=waits_while))
