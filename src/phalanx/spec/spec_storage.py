"""The rules of the keys about the shared directory: what serves it, and what each of the keys goes with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phalanx.spec.spec_checks import WrongError
from phalanx.spec.spec_limits import FILE_SYSTEM
from phalanx.spec.spec_rules import matching, word

EFS, HEAD = "efs", "head"
STORAGE = word((EFS, HEAD))
EFS_ID = matching(
    FILE_SYSTEM,
    "must be the id of an EFS file system, is '{}'",
    "such as fs-0123456789abcdef0",
    "the id of one, such as fs-0123456789abcdef0",
)


def of_efs(value: str, above: Mapping[str, Any]) -> str:
    if value and above.get("storage") not in (None, EFS):
        raise WrongError(f"is for EFS, and storage is {above['storage']}", "remove one of the two lines")
    return value


def keepable(value: str, above: Mapping[str, Any]) -> str:
    if value == "yes" and above.get("storage") == HEAD:
        raise WrongError("can't be yes: with `storage: head` the data are on the head's disk", "remove the line")
    return value
