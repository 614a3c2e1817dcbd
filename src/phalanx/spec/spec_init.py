"""The phalanx.yaml that `phalanx init` writes: every key with its meaning, some of them as comments."""

from __future__ import annotations

from typing import Any

from phalanx.spec.cloud_names import is_emr, is_local
from phalanx.spec.spec import KEYS, Key
from phalanx.spec.spec_emr import suits

_OPENING = "# A phalanx cluster. `phalanx plan` shows what this makes, `phalanx up` makes it."
_WIDTH = 24


def init_text(name: str, cloud: str = "local") -> str:
    """Return the commented file. On AWS, `ssh_from` is left empty for the user to fill in."""
    given = {"name": name, "cloud": cloud} | ({"ssh_from": ""} if not is_local(cloud) else {})
    if is_emr(cloud):
        given |= {"type": "m5.xlarge", "emr": KEYS["emr"].example}
    # `lustre` goes with another `storage` than the one beside it.
    keys = [key for key in KEYS.values() if suits(key.field, cloud) and key.field != "lustre"]
    lines = [_lines(key, given.get(key.name)) for key in keys]
    return "\n".join([_OPENING, *lines, ""])


def _lines(key: Key, given: Any) -> str:
    """Return a key with its value; an optional key without a given value as a comment, with its default."""
    text = key.line(key.example if given is None else given)
    meaning = key.help.partition(". ")[0].rstrip(".")
    if given is not None or key.initial:
        return f"{text:<{_WIDTH}}  # {meaning}"
    default = key.unset or key.written_default
    first, *others = [f"# {line}" for line in text.split("\n")]
    return "\n".join([f"{first:<{_WIDTH}}  # {meaning}" + (f"; default: {default}" if default else ""), *others])
