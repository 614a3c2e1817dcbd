"""Loads a network's packet filter with nftables' own program. It is out of reach of root on the network's nodes."""

from __future__ import annotations

import subprocess
from pathlib import Path

NFT = "/usr/sbin/nft"
_TIMEOUT_S = 30
# The first two show the filter what crosses a bridge. With the third a connection continues whose segments the kernel
# did not see in order.
_SETTINGS = (
    "net.bridge.bridge-nf-call-iptables",
    "net.bridge.bridge-nf-call-ip6tables",
    "net.netfilter.nf_conntrack_tcp_be_liberal",
)


class CannotFilter(OSError):  # noqa: N818 - reads as what happened
    """The kernel or its tools can't filter packets; the message says why."""


def load(ruleset: str) -> None:
    """Replace the filter of this thread's network by nft's input. Raises CannotFilter, and then changes nothing."""
    for name in _SETTINGS:
        _switch_on(name)
    try:
        done = subprocess.run([NFT, "-f", "-"], input=ruleset, capture_output=True, text=True, timeout=_TIMEOUT_S)
    except FileNotFoundError:
        raise CannotFilter(f"{NFT} is not installed") from None
    except subprocess.TimeoutExpired as problem:
        raise CannotFilter(f"{NFT} did not end within {_TIMEOUT_S} s") from problem
    if done.returncode:
        raise CannotFilter(f"{NFT}: {done.stderr.strip()[:2000]}")


def _switch_on(name: str) -> None:
    try:
        Path("/proc/sys", name.replace(".", "/")).write_text("1")
    except OSError as problem:
        raise CannotFilter(f"the kernel does not allow {name}: {problem.strerror}") from problem
