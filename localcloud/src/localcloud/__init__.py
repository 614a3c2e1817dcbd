"""CloudFormation and EC2 on one Linux machine, with real nodes. docs/interface.md says how programs use it."""

from __future__ import annotations

import hashlib
from pathlib import Path

__version__ = "1.0.0"


def code() -> str:
    """Identify the code by its files and their sizes: a local cloud may run longer than its version is installed."""
    package = Path(__file__).parent
    files = sorted((str(path.relative_to(package)), path.stat().st_size) for path in package.rglob("*.py"))
    return hashlib.sha256(repr(files).encode()).hexdigest()[:16]
