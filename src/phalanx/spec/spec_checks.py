"""The checks of phalanx.yaml that need more than a pattern: each returns the value or raises WrongError."""

from __future__ import annotations

import difflib
import ipaddress
import lzma
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from phalanx.counts import first_of
from phalanx.data import table
from phalanx.runner.files.schema import UNIT_SECONDS
from phalanx.spec.cloud_names import is_local

TYPE = r"[a-z][a-z0-9-]*\.[a-z0-9-]+"
OF_RECIPE = "recipe:"
"""How `image` names an image that was made from a recipe: recipe:NAME or recipe:NAME@VERSION."""
IMAGE = (
    r"ami-[0-9a-f]{8}(?:[0-9a-f]{9})?|/[A-Za-z0-9_./-]{1,1010}|"
    rf"{OF_RECIPE}[a-z0-9-]{{1,40}}(?:@[0-9]+\.[0-9]+\.[0-9]+)?"
)
ZONE = r"[a-z]{2,4}(?:-[a-z]+)+-[0-9]+[a-z]"
PATH = r"/[A-Za-z0-9._/-]{0,127}"
NETWORK = r"(?:auto|anywhere|[0-9]{1,3}(?:\.[0-9]{1,3}){3}(?:/[0-9.]+)?)?"
DURATION = r"(?:([0-9]{1,4})d)?(?:([0-9]{1,6})h)?(?:([0-9]{1,6})m)?(?:([0-9]{1,6})s)?"
# It travels in base64, as parameters of one request, whose own limit is not documented (docs/aws-behaviour.md 1.28).
LARGEST_BOOT_BYTES = 64 * 1024
AUTO = "auto"
ANYWHERE = "anywhere"
EVERYWHERE = "0.0.0.0/0"
PRIVATE = "private"
"""The `access` of a network without public addresses."""

# Jobs write there, so only where no image has anything that root reads or runs. /scratch is of each node's own disks,
# and what is below /mnt on nodes of EMR is Hadoop's.
_SHAREABLE = "data|efs|fsx|lustre|nfs|project|share|storage|work"
_OF_EMR = "(?:hdfs|mapred|s3|tmp|var|yarn)(?:/|$)"
_NAME = r"(?!\.\.?(?:/|$))[A-Za-z0-9._-]+"
SHARED = rf"(?!.{{129}})/+(?:(?:{_SHAREABLE})[A-Za-z0-9_-]*|mnt/+(?!{_OF_EMR}){_NAME})(?:/+{_NAME})*"
"""A pattern of the paths that `shared` may be, and the stack's parameter of the same meaning."""
_MOST_VALID = 60


class WrongError(ValueError):
    """An invalid value: `what` continues the sentence "<field>: …"; `hint` says what to do, or is empty.

    `code` is that of the SpecError that it becomes.
    """

    def __init__(self, what: str, hint: str = "", *, code: str) -> None:
        super().__init__(f"{what}; {hint}" if hint else what)
        self.what = what
        self.hint = hint
        self.code = code


def nearest(word: str, valid: Iterable[str]) -> str:
    """Return a hint with the most similar valid words, or with all of them if none is similar."""
    known = sorted(valid)
    near = difflib.get_close_matches(word, known, n=2, cutoff=0.6)
    return f"did you mean {' or '.join(near)}?" if near else f"valid: {first_of(known, most=_MOST_VALID)}"


def at_most_nodes(value: int, above: Mapping[str, Any]) -> int:
    if value > above.get("nodes", value):
        raise WrongError(f"must be at most nodes ({above['nodes']}), is {value}", code="out-of-range")
    return value


def zones_of_region(value: Sequence[Any], above: Mapping[str, Any]) -> Sequence[Any]:
    region = above.get("region")
    elsewhere = [zone for zone in value if re.fullmatch(ZONE, str(zone)) and region and zone[:-1] != region]
    if elsewhere:
        raise WrongError(
            f"{elsewhere[0]} is not a zone of {region}", f"write zones such as {region}a", code="zone-elsewhere"
        )
    return value


def instance_type(value: str) -> str:
    if not re.fullmatch(TYPE, value):
        raise WrongError(
            f"'{cut(value)}' is not an instance type",
            nearest(value, table("instance_types")["types"]),
            code="no-instance-type",
        )
    return value


def head_of_workers(value: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    if above.get("nodes") == 1:
        raise WrongError(
            "does not train, and there is no other node: nodes is 1", "write at least 2 nodes", code="one-node"
        )
    return value


def spot_workers(value: str, above: Mapping[str, Any]) -> str:
    if value == "spot" and above.get("nodes") == 1:
        raise WrongError(
            "is for workers, and there are none: nodes is 1", "the head is on demand: remove the line", code="one-node"
        )
    return value


def kms_key(value: str, above: Mapping[str, Any]) -> str:
    """Check that a key can encrypt what the stack stores."""
    region = above.get("region", "")
    if value.startswith("arn:") and region not in value.split(":")[3:4]:
        raise WrongError(f"is not in {region}, the cluster's region", "name a key there", code="conflicting-keys")
    if ":alias/aws/" in value:
        raise WrongError(
            "is AWS's own key, whose policy can't let other services in",
            "make a key of your own",
            code="conflicting-keys",
        )
    lustre = above.get("lustre") or {}
    if above.get("storage") == "lustre" and not above.get("file_system") and lustre.get("type") != "persistent_2":
        raise WrongError(
            "can't be combined with a scratch file system, which FSx encrypts with its own key",
            "write lustre: {type: persistent_2}",
            code="conflicting-keys",
        )
    return value


def down_after(value: int, above: Mapping[str, Any]) -> int:
    """Check that a cluster at AWS is not removed as soon as it is stopped, which it may be by mistake."""
    if value and above.get("storage") == "lustre":
        raise WrongError(
            "can't be combined with `storage: lustre`, whose file system keeps the network",
            "remove the line",
            code="conflicting-keys",
        )
    if 0 < value < 3600 and not is_local(above.get("cloud", "local")):
        raise WrongError(
            f"is {value} s, and on AWS must be 1h or more: nodes are also stopped by mistake",
            "such as 7d",
            code="out-of-range",
        )
    return value


def image(value: str) -> str:
    aliases = table("images")["images"]
    if value not in aliases and not re.fullmatch(IMAGE, value):
        raise WrongError(
            f"'{cut(value)}' is not a known image",
            nearest(value, [*aliases, "ami-…", "/aws/service/…"]),
            code="no-image",
        )
    return value


def shared(value: str) -> str:
    if not re.fullmatch(PATH, value) or ".." in value.split("/"):
        raise WrongError(
            f"must be an absolute path, is '{cut(value)}'",
            "letters, digits and . _ - / only, such as /efs",
            code="not-a-path",
        )
    path = str(PurePosixPath("/" + value.lstrip("/")))
    if not re.fullmatch(f"{SHARED}/*", value):
        raise WrongError(
            f"'{path}' may belong to the system of a node, as images differ",
            f"name one below /mnt, or one that begins with /{_SHAREABLE.replace('|', ', /')}",
            code="system-path",
        )
    return path


def is_private(network: Mapping[str, Any] | None) -> bool:
    """Whether a value of `network` says that no node has a public address or a way to the internet."""
    return (network or {}).get("access") == PRIVATE


def ssh_from_default(value: Any, above: Mapping[str, Any]) -> Any:
    """Return this machine as the default for the local cloud; refuse a missing value for AWS.

    A head with private access can't be reached from any network.
    """
    if is_private(above.get("network")):
        if value != "":
            raise WrongError(
                "is for a public head, and `network` has access: private", "remove the line", code="conflicting-keys"
            )
        return value
    if value != "":
        return value
    if not is_local(above.get("cloud", "local")):
        raise WrongError(
            "is missing: who may reach the head by ssh?",
            "write your own network, such as 203.0.113.7/32 (auto finds it), or anywhere",
            code="missing-key",
        )
    return "127.0.0.1/32"


def network(value: str) -> str:
    """Return a network in CIDR notation, AUTO or ANYWHERE."""
    if value in (AUTO, ANYWHERE):
        return value
    try:
        found = ipaddress.ip_network(value, strict=False)
    except ValueError:
        raise WrongError(
            f"'{cut(value)}' is not a network",
            "write one such as 203.0.113.0/24, auto or anywhere",
            code="not-a-network",
        ) from None
    return _checked_network(value, found)


def _checked_network(value: str, network: ipaddress.IPv4Network | ipaddress.IPv6Network) -> str:
    if network.version != 4:
        raise WrongError(
            f"'{value}' is an IPv6 network, and the cluster's network is IPv4",
            "write your IPv4 address",
            code="not-a-network",
        )
    if network.prefixlen == 0:
        raise WrongError(
            f"'{value}' opens ssh to the whole internet",
            "write `ssh_from: anywhere` if that is what you want",
            code="open-to-all",
        )
    if "/" in value and str(network.network_address) != value.split("/")[0]:
        raise WrongError(
            f"'{value}' is an address inside a network",
            f"write {network} for the network, or {value.split('/')[0]}/32",
            code="not-a-network",
        )
    return str(network)


def duration_s(value: str) -> int:
    """Return the seconds of a text such as 90s, 10m, 1h30m or 7d."""
    parts = re.fullmatch(DURATION, value)
    if not value or not parts:
        is_number = value.isdecimal() and len(value) < 7
        hint = f"such as {value}s, {value}m or {value}h" if is_number else "such as 90s, 10m or 1h30m"
        raise WrongError(f"must be a time with its unit, is '{cut(value)}'", hint, code="not-a-time")
    return sum(int(number) * seconds for number, seconds in zip(parts.groups("0"), UNIT_SECONDS.values(), strict=True))


def boot(value: str) -> str:
    """Check the size of a shell script, which travels in parameters of the stack, as the agent does."""
    if "\0" in value:
        raise WrongError("contains a NUL character", code="not-text")
    size = len(packed_boot(value))
    if size > LARGEST_BOOT_BYTES:
        raise WrongError(
            f"is {size} bytes compressed, and at most {LARGEST_BOOT_BYTES} fit",
            "put the script on the shared directory or the web and call it from here",
            code="too-long",
        )
    return value


def packed_boot(script: str) -> bytes:
    """Return the script as an LZMA stream; the same bytes every time."""
    # A window as large as the largest file that is read; the preset's own would cost a node 8 MiB.
    filters = [{"id": lzma.FILTER_LZMA1, "preset": 6, "dict_size": 1 << 18}]
    return lzma.compress(script.encode(), format=lzma.FORMAT_ALONE, filters=filters)


def cut(text: str) -> str:
    """Return the beginning of a value, for a message."""
    first = text.split("\n", 1)[0]
    return first if first == text and len(first) <= 60 else f"{first[:60]}…"
