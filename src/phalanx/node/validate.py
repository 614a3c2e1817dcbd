"""The one check of all external input: hellos, the roster table, roster files and the answers of a head.

A job, or root on a node, can write any character there. What passes here is safe inside a line of
sshd_config, of known_hosts or of /etc/hosts, and as an argument of a command: no pattern takes a space, a quote, a
comma, a line break or a dash at its beginning.
"""

from __future__ import annotations

import json
import re
import zlib
from typing import Any, Callable, Mapping

from phalanx.node.roster import FORMAT, Missing, Node, Roster

# Ten times what 1,000 nodes need.
ROSTER_BYTES = 4 << 20
NODES_MOST = 1000
SLOTS_MOST = 4096
# The digits of 2^64. Python before 3.11 takes minutes to read a number with a million digits.
_DIGITS_MOST = 20
_REASON_CHARACTERS = 8000
_COUNT_MOST = 2**31
_SHOWN_CHARACTERS = 60

UPGRADE = "pip install -U phalanx"
"""What to do about a newer format."""

NETWORKS = "10.0.0.0/8,172.16.0.0/12,192.168.0.0/16,100.64.0.0/10"
"""The private addresses that a cluster's network may have (RFC 1918 and 6598), as a list of CIDR blocks."""
_ANYWHERE = "0.0.0.0/0"

_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_KEY = "(?:ssh|ecdsa)-[a-z0-9-]{3,30}"
_BASE64 = "AAAA[0-9A-Za-z+/]{1,8000}={0,2}"
_LABEL = "[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"


class Invalid(ValueError):  # noqa: N818 (what it says of a value)
    """An invalid value; the message names the field and shows the beginning of the value."""


class Newer(Invalid):
    """Something that a newer phalanx made; the message says what to do."""


def _no(what: str, value: Any) -> Invalid:
    return Invalid(f"{value!r:.{_SHOWN_CHARACTERS}} is not {what}")


def _text(expression: str, what: str) -> Callable[[Any], str]:
    """Return a check for strings that are `what`; it returns the string, without a comment that may follow."""
    pattern = re.compile(expression)

    def check(value: Any) -> str:
        found = pattern.fullmatch(value) if isinstance(value, str) else None
        if found is None:
            raise _no(what, value)
        return found[1]

    return check


instance_id = _text("(i-[0-9a-f]{1,17})", "an instance id")
hostname = _text(rf"((?:ip(?:-{_BYTE}){{4}}|i-[0-9a-f]{{1,17}})(?:\.{_LABEL}){{0,8}})", "one of EC2's host names")
node_name = _text("(deeplearning-worker[1-9][0-9]{0,3})", "the name of a node")
key_line = _text(rf"({_KEY} {_BASE64})(?: [ -~]{{0,500}})?", "a public key of ssh")
certificate_line = _text(rf"({_KEY}-cert-v01@openssh\.com {_BASE64})(?: [ -~]{{0,500}})?", "a certificate of ssh")
instance_type = _text(r"([a-z][a-z0-9-]{0,30}\.[a-z0-9][a-z0-9-]{0,30})", "an instance type")
_address = _text(rf"({_BYTE}(?:\.{_BYTE}){{3}})", "an IPv4 address")
_zone = _text("([a-z][a-z0-9-]{1,60})", "an availability zone")
_cluster = _text("([A-Za-z][A-Za-z0-9-]{0,127})", "the name of a stack")


def address(value: Any, networks: str = _ANYWHERE) -> str:
    """Return the value if it is an IPv4 address inside one of `networks`, such as 10.0.0.0/16,10.2.0.0/16.

    Raises Invalid.
    """
    number = _number(_address(value))
    if not any(_contains(network, number) for network in networks.split(",")):
        raise _no(f"an address inside {networks}", value)
    return value


def _contains(network: str, number: int) -> bool:
    base, bits = network.split("/")
    return (number ^ _number(base)) >> (32 - int(bits)) == 0


def _number(dotted: str) -> int:
    return int.from_bytes(bytes(map(int, dotted.split("."))), "big")


def count(value: Any, most: int = _COUNT_MOST) -> int:
    """Return the value if it is a whole number from 0 to `most`. Raises Invalid."""
    if type(value) is not int or not 0 <= value <= most:
        raise _no(f"a number from 0 to {most}", value)
    return value


def reason(value: Any) -> str:
    """Return a text for people: cut, and without control characters except line breaks."""
    if not isinstance(value, str):
        raise _no("a string", value)
    return "".join(c if c.isprintable() or c == "\n" else " " for c in value[:_REASON_CHARACTERS])


def node(item: Any) -> Node:
    """Return the node that `item` describes; its host name must be that of its address or of its instance."""
    found = Node(**fields(_NODE, item))
    own = ("ip-" + found.address.replace(".", "-"), found.instance_id)
    if found.hostname.split(".")[0] not in own:
        raise _no(f"the host name of {found.address}", found.hostname)
    return found


def require_format(content: Any, known: int, what: str) -> None:
    """Raise Newer if the format's number of `what` is above the `known` one, and Invalid if it is none of phalanx's."""
    number = fields({"format": count}, content)["format"]
    if number > known:
        raise Newer(f"{what} was made by a newer phalanx (format {number}; this one reads {known}): {UPGRADE}")
    if number != known:
        raise Invalid(f"format: {number} is not one that phalanx writes")


def roster(text: str | bytes, networks: str = _ANYWHERE) -> Roster:
    """Return the roster that `Roster.to_json` or `packed` wrote, with nodes inside `networks`; skip unknown keys.

    Raises Invalid, and Newer for the roster of a newer phalanx.
    """
    if isinstance(text, bytes):
        text = unpacked(text)
    if len(text) > ROSTER_BYTES:
        raise _no("a roster: it is too long", text)
    content = parse(text)
    require_format(content, FORMAT, "the cluster's roster")
    found = Roster(**fields(_ROSTER, content))
    for member in found.members:
        address(member.address, networks)
    for values in zip(*((n.name, n.instance_id, n.address) for n in found.members)):  # noqa: B905 (Python 3.9)
        if len(set(values)) < len(values):
            raise _no("a roster: a node is in it twice", values)
    if [n.head for n in found.nodes].count(True) != 1:
        raise _no("a roster with one head", text)
    return found


def unpacked(data: bytes) -> str:
    """Return the JSON that `Roster.packed` compressed. Raises Invalid."""
    try:
        return zlib.decompressobj().decompress(data, ROSTER_BYTES + 1).decode()
    except (zlib.error, UnicodeDecodeError) as error:
        raise _no("a packed roster", data) from error


def parse(text: str | bytes) -> Any:
    """Return the value of this JSON, without NaN and whole numbers of more than 20 digits. Raises Invalid."""
    try:
        return json.loads(text, parse_int=_whole, parse_constant=_whole)
    except (ValueError, RecursionError) as error:
        raise Invalid(f"{text[:_SHOWN_CHARACTERS]!r} is not valid JSON, or not complete") from error


def _whole(digits: str) -> int:
    """Raises ValueError for NaN and for infinity, too."""
    return int(digits if len(digits) <= _DIGITS_MOST else "")


def fields(checks: Mapping[str, Callable[[Any], Any]], item: Any) -> dict[str, Any]:
    """Return what the checks return for an object's fields; skip others. Raises Invalid, which names the field."""
    found = {}
    for name, check in checks.items():
        try:
            found[name] = check(item[name])
        except KeyError as error:
            raise Invalid(f"{name} is missing") from error
        except (Invalid, TypeError, RecursionError) as error:  # the last from showing a value that is nested deep
            raise Invalid(f"{name}: {error}") from error
    return found


def truth(value: Any) -> bool:
    """Return the value if it is true or false. Raises Invalid."""
    if not isinstance(value, bool):
        raise _no("true or false", value)
    return value


def _several(check: Callable[[Any], Any]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a check for a list, whose length is bounded by that of the text that contains it."""

    def checked(values: Any) -> tuple[Any, ...]:
        if not isinstance(values, list):
            raise _no("a list", values)
        return tuple(map(check, values))

    return checked


def _missing(item: Any) -> Missing:
    return Missing(**fields(_MISSING, item))


def _slots(value: Any) -> int:
    return count(value, SLOTS_MOST)


_NODE = {
    "name": node_name,
    "instance_id": instance_id,
    "address": address,
    "hostname": hostname,
    "zone": _zone,
    "type": instance_type,
    "gpus": _slots,
    "slots": _slots,
    "head": truth,
    "host_key": key_line,
    "user_key": key_line,
}
_MISSING = {"name": node_name, "reason": reason}
_ROSTER = {
    "cluster": _cluster,
    "generation": count,
    "requested": count,
    "minimum": count,
    "nodes": _several(node),
    "missing": _several(_missing),
    "revoked": _several(key_line),
    "silent": _several(node),
    "leaving": _several(_missing),
}
