"""The records of file systems that outlive the local cloud, DIR/efs/fs-….json, beside the directory with their data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def directory(state: Path, file_system_id: str) -> Path:
    """The directory on this machine that holds a file system's data."""
    return state / "efs" / file_system_id


def path_of(state: Path, file_system_id: str) -> Path:
    """The file with the record of a file system."""
    return state / "efs" / f"{file_system_id}.json"


def write(path: Path, record: dict[str, Any]) -> None:
    """Write a temporary file and rename it: the record is whole even if the local cloud is killed meanwhile."""
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps(record))
    beside.replace(path)


def kept(state: Path) -> list[dict[str, Any]]:
    """Return all, the newest first: `id`, `path` of the data, `record`, `region` and `tags`.

    Region and tags are empty where the record is damaged.
    """
    found = sorted(state.glob("efs/fs-*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    return [_described(state, path) for path in found]


def _described(state: Path, path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_text())
        known = {"region": str(record["region"]), "tags": {tag["Key"]: tag["Value"] for tag in record["tags"]}}
    except (OSError, ValueError, KeyError, TypeError):
        known = {"region": "", "tags": {}}
    return {"id": path.stem, "path": str(directory(state, path.stem)), "record": str(path), **known}
