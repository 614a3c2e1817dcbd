"""The rules of the keys about the shared directory: what serves it, and what each of the keys goes with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phalanx.spec.makers import maker_of
from phalanx.spec.spec_checks import WrongError
from phalanx.spec.spec_limits import FILE_SYSTEM
from phalanx.spec.spec_rules import matching, word

EFS, LUSTRE, HEAD = "efs", "lustre", "head"
STORAGE = word((EFS, LUSTRE, HEAD))
FILE_SYSTEM_ID = matching(
    FILE_SYSTEM,
    "must be the id of a file system of EFS or FSx, is '{}'",
    "such as fs-0123456789abcdef0",
    "the id of one, such as fs-0123456789abcdef0",
)


def on_service(value: str, above: Mapping[str, Any]) -> str:
    if value == LUSTRE and not maker_of(above.get("cloud", "")).mounts:
        raise WrongError(
            "can't be lustre with EMR, whose nodes nobody has tried it on", "write efs or head", code="not-on-emr"
        )
    return value


def of_efs(value: str, above: Mapping[str, Any]) -> str:
    if value and above.get("storage") not in (None, EFS):
        hint = "write it in `lustre`" if above["storage"] == LUSTRE else "remove one of the two lines"
        raise WrongError(f"is for EFS, and storage is {above['storage']}", hint, code="conflicting-keys")
    return value


def of_service(value: str, above: Mapping[str, Any]) -> str:
    if value and above.get("storage") == HEAD:
        raise WrongError(
            "is for EFS and FSx, and storage is head", "remove one of the two lines", code="conflicting-keys"
        )
    return value


def keepable(value: str, above: Mapping[str, Any]) -> str:
    """Refuse what `down` can't do with the data of this storage (docs/aws-behaviour.md 4.14)."""
    storage, own = above.get("storage"), above.get("file_system")
    if value == "yes" and storage == HEAD:
        raise WrongError(
            "can't be yes: with `storage: head` the data are on the head's disk",
            "remove the line",
            code="conflicting-keys",
        )
    if value == "yes" and storage == LUSTRE and not own:
        raise WrongError(
            "can't be yes: the Lustre file system is in the network that `down` deletes",
            "link its data to S3 (`lustre: {data: …}`), or name your own file system (`file_system`)",
            code="conflicting-keys",
        )
    if value == "no" and storage == LUSTRE and own:
        raise WrongError(
            f"can't be no: `down` never deletes {own}, which phalanx did not make",
            "remove the line",
            code="conflicting-keys",
        )
    return value
