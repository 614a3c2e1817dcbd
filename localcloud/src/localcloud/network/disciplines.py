"""Queueing disciplines of the kernel that make a link slower: their names and options, as rtnetlink has them."""

from __future__ import annotations

import struct
from typing import NamedTuple

from localcloud.network.netlink import attribute

# include/uapi/linux/pkt_sched.h
_TBF_PARMS, _TBF_BURST = 1, 6
_NETEM_RATE = 6
_ETHERNET = 1
# What may leave at once: more than one frame of 9,001 bytes, and what passes between two looks of a busy kernel.
_BURST_BYTES, _BURST_S = 16 * 1024, 0.002
# A packet waits at most this long for its turn; what would wait longer is dropped, as by a switch.
_QUEUE_S = 0.02
_DELAYED_PACKETS = 20_000
# The unit of the scheduler's times (PSCHED_SHIFT in include/net/pkt_sched.h): 64 ns
_TICKS_PER_S = 1e9 / 64


class Discipline(NamedTuple):
    """A queueing discipline: its name in the kernel, and its options, packed."""

    kind: str
    options: bytes


def of(rate_bit_s: int, delay_s: float) -> Discipline | None:
    """Return the discipline for this rate (0: no limit) and delay; None where neither is asked for."""
    if delay_s:
        return _delayed(rate_bit_s, delay_s)
    return _limited(rate_bit_s) if rate_bit_s else None


def _limited(rate_bit_s: int) -> Discipline:
    """Return a token bucket filter (tc-tbf(8)), for less than 2^32 bytes a second."""
    rate = rate_bit_s // 8
    burst = max(_BURST_BYTES, int(rate * _BURST_S))
    # struct tc_tbf_qopt: rate, peak rate, limit, buffer, mtu; `_TBF_BURST` has the buffer, in bytes.
    speed = struct.pack("=BBHhHI", 0, _ETHERNET, 0, 0, 0, rate)
    sizes = struct.pack("=III", burst + int(rate * _QUEUE_S), 0, 0)
    return Discipline("tbf", attribute(_TBF_PARMS, speed + bytes(len(speed)) + sizes) + attribute(_TBF_BURST, burst))


def _delayed(rate_bit_s: int, delay_s: float) -> Discipline:
    """Return a network emulator (tc-netem(8)), which limits the rate, too."""
    # struct tc_netem_qopt: latency, limit, loss, gap, duplicate, jitter
    options = struct.pack("=6I", round(delay_s * _TICKS_PER_S), _DELAYED_PACKETS, 0, 0, 0, 0)
    if rate_bit_s:
        options += attribute(_NETEM_RATE, struct.pack("=IiIi", rate_bit_s // 8, 0, 0, 0))
    return Discipline("netem", options)
