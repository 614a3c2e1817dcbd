"""What each field of phalanx.yaml may hold: a function a field, which returns the value or raises WrongError."""

from __future__ import annotations

import difflib
import ipaddress
import lzma
import re
from collections.abc import Iterable
from pathlib import PurePosixPath

from phalanx.data import table

CLOUDS = ("local", "aws")
MOST_NODES = 1000
LONGEST_NODE_TIMEOUT_S = 45 * 60
FILE_SYSTEM = r"fs-[0-9a-f]{8,40}"
KEEP = ("yes", "no", "ask")
# The table's item that brings it to the workers holds 400 KB (docs/aws-behaviour.md 8), in base85.
LARGEST_BOOT_BYTES = 256 * 1024
ANYWHERE = "0.0.0.0/0"

# A directory there would hide what the system, or phalanx itself, keeps in it.
_SYSTEM_TREES = (
    *(
        "/bin",
        "/boot",
        "/dev",
        "/etc",
        "/lib",
        "/lib32",
        "/lib64",
        "/libx32",
        "/proc",
        "/root",
        "/run",
        "/sbin",
        "/sys",
        "/usr",
    ),
    *("/opt/phalanx", "/opt/deeplearning", "/opt/amazon", "/opt/pytorch", "/opt/dlami"),
)
_SYSTEM_DIRECTORIES = (
    "/",
    "/home",
    "/home/phalanx",
    "/opt",
    "/srv",
    "/tmp",
    "/var",
    "/var/lib",
    "/var/log",
    "/var/run",
    "/var/tmp",
)
_UNIT_SECONDS = {"h": 3600, "m": 60, "s": 1}


class WrongError(ValueError):
    """A value that can't be: `what` continues the sentence "<field>: …"; `hint` is the way out, or empty."""

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(f"{what}; {hint}" if hint else what)
        self.what = what
        self.hint = hint


def nearest(word: str, valid: Iterable[str]) -> str:
    """A hint with the nearest valid words, or with all of them when none is near."""
    known = sorted(valid)
    near = difflib.get_close_matches(word, known, n=2, cutoff=0.6)
    return f"did you mean {' or '.join(near)}?" if near else f"valid: {', '.join(known)}"


def name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9-]{0,62}", value):
        raise WrongError(
            f"CloudFormation refuses '{_cut(value)}' as the name of a stack",
            "begin with a letter, then letters, digits and '-'; at most 63",
        )
    return value


def cloud(value: str) -> str:
    if value not in CLOUDS:
        raise WrongError(f"'{_cut(value)}' is no cloud that phalanx knows", nearest(value, CLOUDS))
    return value


def region(value: str) -> str:
    known = table("regions")["regions"]
    if value not in known:
        raise WrongError(f"'{_cut(value)}' is no AWS region", nearest(value, known))
    return value


def nodes(value: int) -> int:
    return _within(value, 1, MOST_NODES)


def minimum(value: int, nodes: int | None) -> int:
    """`nodes` is None when that field is wrong itself."""
    if nodes is not None and value > nodes:
        raise WrongError(f"must be at most nodes ({nodes}), is {value}")
    return _within(value, 1, MOST_NODES)


def slots(value: int) -> int:
    return _within(value, 1, 1024)


def instance_type(value: str) -> str:
    if not re.fullmatch(r"[a-z][a-z0-9-]*\.[a-z0-9-]+", value):
        raise WrongError(f"'{_cut(value)}' is no instance type", nearest(value, table("instance_types")["types"]))
    return value


def image(value: str) -> str:
    if value.startswith("ami-"):
        raise WrongError(
            f"'{_cut(value)}' is an AMI id, and those differ in every region",
            "put it into an SSM parameter of your own and write its path, such as /my/image",
        )
    aliases = table("images")["images"]
    if value not in aliases and not re.fullmatch(r"/[A-Za-z0-9_./-]{1,1010}", value):
        raise WrongError(f"'{_cut(value)}' is no known image", nearest(value, [*aliases, "/aws/service/…"]))
    return value


def shared(value: str) -> str:
    if not re.fullmatch(r"/[A-Za-z0-9._/-]{0,127}", value) or ".." in value.split("/"):
        raise WrongError(
            f"must be an absolute path, is '{_cut(value)}'", "letters, digits and . _ - / only, such as /efs"
        )
    path = str(PurePosixPath("/" + value.lstrip("/")))
    if path in _SYSTEM_DIRECTORIES or any(path == tree or path.startswith(f"{tree}/") for tree in _SYSTEM_TREES):
        raise WrongError(f"'{path}' belongs to the system of every node", "mount it elsewhere, such as /efs")
    return path


def file_system(value: str) -> str:
    if not re.fullmatch(FILE_SYSTEM, value):
        raise WrongError(f"must be the id of an EFS file system, is '{_cut(value)}'", "such as fs-0123456789abcdef0")
    return value


def keep(value: str) -> str:
    if value not in KEEP:
        raise WrongError(f"must be yes, no or ask, is '{_cut(value)}'", nearest(value, KEEP))
    return value


def ssh_from(value: str, cloud: str | None) -> str:
    """A network in CIDR notation. "" means not said: this machine for the local cloud, a mistake for AWS."""
    if not value:
        return _ssh_from_default(cloud)
    if value == "anywhere":
        return ANYWHERE
    try:
        network = ipaddress.ip_network(value, strict=False)
    except ValueError:
        raise WrongError(f"'{_cut(value)}' is no network", "write one such as 203.0.113.0/24, or anywhere") from None
    return _checked_network(value, network)


def _ssh_from_default(cloud: str | None) -> str:
    if cloud == "aws":
        raise WrongError(
            "is missing: who may reach the head by ssh?",
            "write your own network, such as 203.0.113.7/32 (https://checkip.amazonaws.com shows it), or anywhere",
        )
    return "127.0.0.1/32"


def _checked_network(value: str, network: ipaddress.IPv4Network | ipaddress.IPv6Network) -> str:
    if network.version != 4:
        raise WrongError(f"'{value}' is an IPv6 network, and the cluster's network is IPv4", "write your IPv4 address")
    if network.prefixlen == 0:
        raise WrongError(
            f"'{value}' opens ssh to the whole internet", "write `ssh_from: anywhere` if that is what you want"
        )
    if "/" in value and str(network.network_address) != value.split("/")[0]:
        raise WrongError(
            f"'{value}' is an address inside a network", f"write {network} for the network, or {value.split('/')[0]}/32"
        )
    return str(network)


def key_pair(value: str) -> str:
    if not re.fullmatch(r"[\x21-\x7e]([\x20-\x7e]{0,253}[\x21-\x7e])?", value):
        raise WrongError(
            f"'{_cut(value)}' can't be the name of an EC2 key pair", "1 to 255 ASCII characters, no space at the ends"
        )
    return value


def duration_s(value: str) -> int:
    """Seconds in a text such as 90s, 10m or 1h30m."""
    parts = re.fullmatch(r"(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,6})s)?", value)
    if not value or not parts:
        hint = f"such as {value}s or {value}m" if value.isdecimal() and len(value) < 7 else "such as 90s, 10m or 1h30m"
        raise WrongError(f"must be a time with its unit, is '{_cut(value)}'", hint)
    return sum(int(number) * seconds for number, seconds in zip(parts.groups("0"), _UNIT_SECONDS.values(), strict=True))


def node_timeout_s(value: int) -> int:
    if not 1 <= value <= LONGEST_NODE_TIMEOUT_S:
        raise WrongError(
            f"must be from 1s to {LONGEST_NODE_TIMEOUT_S // 60}m, is {value}s",
            "the stack itself gives up after 55 minutes",
        )
    return value


def boot(value: str) -> str:
    """A shell script. It travels in the template, as the agent does."""
    if "\0" in value:
        raise WrongError("holds a NUL character")
    size = len(packed_boot(value))
    if size > LARGEST_BOOT_BYTES:
        raise WrongError(
            f"is {size} bytes compressed, and at most {LARGEST_BOOT_BYTES} fit",
            "put the script on the shared directory or the web and call it from here",
        )
    return value


def bucket(value: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]", value):
        raise WrongError(
            f"'{_cut(value)}' can't be the name of an S3 bucket for this",
            "3 to 63 lower-case letters, digits and '-'; no dots, which TLS does not go with",
        )
    return value


def packed_boot(script: str) -> bytes:
    """The script as an LZMA stream; the same bytes every time."""
    # A window as large as the largest file that is read; the preset's own would cost a node 8 MiB.
    filters = [{"id": lzma.FILTER_LZMA1, "preset": 6, "dict_size": 1 << 18}]
    return lzma.compress(script.encode(), format=lzma.FORMAT_ALONE, filters=filters)


def _within(value: int, least: int, most: int) -> int:
    if value < least:
        raise WrongError(f"must be at least {least}, is {value}")
    if value > most:
        raise WrongError(f"must be at most {most}, is {value}")
    return value


def _cut(text: str) -> str:
    first = text.split("\n", 1)[0]
    return first if first == text and len(first) <= 60 else f"{first[:60]}…"
