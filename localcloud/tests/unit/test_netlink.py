"""rtnetlink messages have the format of the kernel's headers."""

from __future__ import annotations

import struct

from hypothesis import given, settings
from hypothesis import strategies as st

from localcloud.network import netlink


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


def test_a_rate_is_a_bucket_of_two_milliseconds_with_a_queue_of_twenty() -> None:
    """The numbers are those of iproute2 6.1's `tc … tbf rate 1gbit burst 250000 latency 20ms`."""
    kind, options = netlink.discipline(10**9, 0.0)
    parameters, burst = options[:40], options[40:]
    assert (kind, struct.unpack_from("=HH", parameters)) == ("tbf", (40, 1))
    assert struct.unpack_from("=I", parameters, 12)[0] == 125_000_000
    assert struct.unpack_from("=I", parameters, 28)[0] == 2_750_000
    assert struct.unpack("=HHI", burst) == (8, 6, 250_000)


def test_a_delay_is_sent_as_iproute2_sends_it() -> None:
    """The bytes are those of `tc qdisc replace … netem limit 20000 delay 5ms rate 1gbit` of iproute2 6.1."""
    sent = "2d310100204e0000" + "00" * 16 + "1400060040597307" + "00" * 12
    assert netlink.discipline(10**9, 0.005) == ("netem", bytes.fromhex(sent))


def test_a_link_without_limit_and_delay_has_no_discipline() -> None:
    assert netlink.discipline(0, 0.0) is None
