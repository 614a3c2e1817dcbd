"""The local cloud's file systems: a directory each, and a record beside it if it outlives the local cloud."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from pathlib import Path
from typing import Any

from moto.efs.models import EFSBackend, FileSystem, efs_backends

from localcloud.context import Context
from localcloud.nodes.machine import BUCKETS, EXPORTS
from localcloud.storage import file_system_records as records
from localcloud.storage import owners, trees
from localcloud.storage.file_system_records import directory

PATCHED = (
    "moto.efs.models.EFSBackend.create_file_system",
    "moto.efs.models.EFSBackend.delete_file_system",
    "moto.efs.models.FileSystem.size_in_bytes",
)
TRASH = "trash"
"""The directory in the state directory with what is being removed."""
# What EFS counts for each file and directory, and in which steps (docs/aws-behaviour.md 4.19).
_METADATA_BYTES, _STEP_BYTES = 2048, 4096
_MOST_COUNTED = 100_000
_create, _delete = EFSBackend.create_file_system, EFSBackend.delete_file_system


def metered_bytes(root: Path) -> int:
    """Return the size of a file system as EFS counts it; of very many files, that of the first ones."""
    total, counted, left = _METADATA_BYTES + _STEP_BYTES, 0, [os.fspath(root)]
    while left and counted < _MOST_COUNTED:
        with contextlib.suppress(OSError), os.scandir(left.pop()) as entries:
            for entry in entries:
                counted += 1
                total += _metered(entry.stat(follow_symlinks=False))
                left += [entry.path] if entry.is_dir(follow_symlinks=False) else []
    return total


def _metered(found: os.stat_result) -> int:
    steps = max(1, -(-found.st_blocks * 512 // _STEP_BYTES))
    return _METADATA_BYTES + steps * _STEP_BYTES


def buckets(context: Context, vpc_id: str) -> None:
    """Make the directory with the buckets that the nodes of a VPC mount."""
    path = context.state / BUCKETS / vpc_id
    path.mkdir(parents=True, exist_ok=True, mode=0o755)
    os.chown(path, context.root_of_nodes, context.root_of_nodes)


def remove_exports(state: Path, vpc_id: str) -> None:
    """Remove what a VPC's nodes serve over NFS: the data end with the machines that served them."""
    trees.remove(state / EXPORTS / vpc_id)


def discard(context: Context, path: Path) -> None:
    """Take a directory away at once; what is in it goes in the background, which may take a minute."""
    trash = context.state / TRASH
    gone = trash / secrets.token_hex(8)
    trash.mkdir(exist_ok=True)
    try:
        path.rename(gone)
    except OSError:
        trees.remove(path)
        return
    context.spawn(_remove, gone, name=f"removal of {path.name}")


def _remove(gone: Path) -> None:
    trees.remove(gone)
    with contextlib.suppress(OSError):
        gone.parent.rmdir()


def discard_at_exit(state: Path, file_system_id: str) -> None:
    """Delete a file system when the local cloud stops, if its stack has not deleted it before."""
    records.path_of(state, file_system_id).unlink(missing_ok=True)


def sweep(state: Path) -> None:
    """Remove the data of every file system that does not outlive the local cloud."""
    for directory_of_data in (state / EXPORTS, state / TRASH):
        trees.remove(directory_of_data)
    root = state / "efs"
    for path in root.iterdir() if root.is_dir() else ():
        if path.is_dir() and not records.path_of(state, path.name).exists():
            trees.remove(path)
    if root.is_dir() and not any(root.iterdir()):
        root.rmdir()


def install(context: Context) -> None:
    """Give each of moto's file systems its directory, and restore those that an earlier local cloud left."""

    def create_file_system(self: EFSBackend, creation_token: str, *args: Any, **kwargs: Any) -> FileSystem:
        made = _create(self, creation_token, *args, **kwargs)
        path = directory(context.state, made.file_system_id)
        path.mkdir(parents=True, mode=0o755)
        os.chown(path, context.root_of_nodes, context.root_of_nodes)
        tags = self.tagging_service.convert_dict_to_tags_input(
            self.tagging_service.get_tag_dict_for_resource(made.file_system_id)
        )
        kept = {"region": self.region_name, "token": creation_token, "encrypted": made.encrypted, "tags": tags}
        records.write(records.path_of(context.state, made.file_system_id), kept)
        return made

    def delete_file_system(self: EFSBackend, file_system_id: str) -> None:
        _delete(self, file_system_id)
        records.path_of(context.state, file_system_id).unlink(missing_ok=True)
        discard(context, directory(context.state, file_system_id))

    def size_in_bytes(self: FileSystem) -> dict[str, Any]:
        size = metered_bytes(directory(context.state, self.file_system_id))
        return {"Value": size, "ValueInIA": 0, "ValueInStandard": size, "Timestamp": context.clock.now().timestamp()}

    setattr(FileSystem, "size_in_bytes", property(size_in_bytes))  # noqa: B010 (as below)
    setattr(EFSBackend, "create_file_system", create_file_system)  # noqa: B010 (pyright knows the original's type)
    setattr(EFSBackend, "delete_file_system", delete_file_system)  # noqa: B010
    sweep(context.state)
    for record in sorted((context.state / "efs").glob("*.json")):
        owners.shift(directory(context.state, record.stem), context.root_of_nodes)
        try:
            _restore(context, record.stem, json.loads(record.read_text()))
        except (ValueError, KeyError, TypeError) as error:
            context.warn(
                f"{record.stem} is not restored: {record} is damaged ({error!r}). Its files are in "
                f"{record.with_suffix('')}; to delete them, delete both."
            )


def _restore(context: Context, file_system_id: str, kept: dict[str, Any]) -> None:
    backend = efs_backends[context.account][kept["region"]]
    made: Any = FileSystem(
        context.account,
        kept["region"],
        kept["token"],
        file_system_id,
        context=backend,
        performance_mode="generalPurpose",
        encrypted=kept["encrypted"],
        kms_key_id="",
        throughput_mode="bursting",
        provisioned_throughput_in_mibps=0,
        availability_zone_name="",
        backup=False,
    )
    backend.file_systems_by_id[file_system_id] = made
    backend.tagging_service.tag_resource(file_system_id, kept["tags"])
    backend.creation_tokens.add(kept["token"])
