"""rtnetlink messages have the format of the kernel's headers."""

from __future__ import annotations

import struct

from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.localcloud import netlink


def test_an_attribute_is_padded_but_its_length_is_not() -> None:
    assert netlink.attribute(3, "vpc") == struct.pack("=HH", 8, 3) + b"vpc\0"
    assert netlink.attribute(3, "eth10") == struct.pack("=HH", 10, 3) + b"eth10\0" + b"\0\0"
    assert netlink.attribute(4, 9001) == struct.pack("=HHI", 8, 4, 9001)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(3, 99), st.binary(max_size=50)), max_size=5))
def test_a_datagram_is_split_where_its_messages_end(parts: list[tuple[int, bytes]]) -> None:
    sent = [netlink.message(kind, 0, number, body) for number, (kind, body) in enumerate(parts)]
    padded = b"".join(raw + b"\0" * (-len(raw) % 4) for raw in sent)
    assert netlink.messages(padded) == [(kind, number, body) for number, (kind, body) in enumerate(parts)]


def test_every_request_asks_for_an_acknowledgement() -> None:
    length, kind, flags, sequence, port = struct.unpack_from("=IHHII", netlink.message(16, 0x600, 7, b"body"))
    assert (length, kind, flags, sequence, port) == (20, 16, 0x605, 7, 0)
