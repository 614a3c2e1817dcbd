"""Detect that the head will never become ready, from its progress in the roster table and its launches."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from phalanx.aws import stacks
from phalanx.aws.inventory import drift
from phalanx.aws.model import Heads
from phalanx.errors import CloudError

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws

LOOK_S = 5.0
COMPARE_S = 30.0
MOST_LAUNCHES = 3
"""One machine may fail by accident; three in a row do not."""
_SILENCE_MOST_S = 60.0
_SILENCE_LEAST_S = 15.0
# What counts as silence between two readings: if ours take longer, the head's writing may, too.
_UNREAD_MOST_S = 10.0


class HeadWatch:
    """Watch the head while the stack is created.

    Pass each progress item to `hear`; `verdict` returns why the creation can't succeed, "" while it may.
    """

    def __init__(self, cloud: Aws) -> None:
        self._cloud = cloud
        self._progress: Mapping[str, str] = {}
        self._last_seen: Heads | None = None
        self._lost: set[str] = set()
        self._silent_s = 0.0
        self._read_at = self._looked_at = self._compared_at = time.monotonic()

    def hear(self, progress: Mapping[str, str]) -> None:
        """Take the item `progress`: a change shows that the head is alive. (Its clock may differ from ours.)"""
        now = time.monotonic()
        unread_s, self._read_at = now - self._read_at, now
        is_news = progress != self._progress
        self._silent_s = 0.0 if is_news else self._silent_s + min(unread_s, _UNREAD_MOST_S)
        self._progress = progress

    def verdict(self, group: str, node_timeout_s: float) -> str:
        """Return why the creation can't succeed, from the history of the head's group; "" while it may."""
        if self._last_seen:
            return self._each_ended(self._last_seen)
        now = time.monotonic()
        if now - self._looked_at < min(LOOK_S, node_timeout_s):
            return ""
        self._looked_at = now
        heads = self._cloud.machines.heads(group)
        if len(heads.launched) >= MOST_LAUNCHES:
            # Reported at the next call: by then the progress has been read again, and shows the last head's last step.
            self._last_seen = heads
            return ""
        return self._silence(heads, node_timeout_s)

    def lost(self, stack_id: str) -> str:
        """Return what somebody has removed by hand and nodes need, once two looks have missed it; "" before."""
        now = time.monotonic()
        if now - self._compared_at < COMPARE_S:
            return ""
        self._compared_at = now
        before, self._lost = self._lost, self._drift(stack_id)
        return "; ".join(sorted(before & self._lost))

    def _drift(self, stack_id: str) -> set[str]:
        """Return what is missing now; nothing if AWS does not say: the creation goes on without this look."""
        try:
            return set(drift.find(self._cloud, stacks.resources(self._cloud, stack_id)))
        except CloudError:
            return set()

    def _each_ended(self, heads: Heads) -> str:
        # The newest may have only just started: its step is not where the others ended.
        at = self._at(heads.launched[: -1 if heads.running else None])
        return f"{len(heads.launched)} heads were launched one after another, and each ended{at}: {heads.why}"

    def _silence(self, heads: Heads, node_timeout_s: float) -> str:
        """Return that a running head has been silent for too long. (Auto Scaling replaces one that does not run.)"""
        if not heads.launched or not heads.running:
            self._silent_s = 0.0
            return ""
        head = heads.launched[-1]
        spoke = self._progress.get("head") == head
        patience_s = max(_SILENCE_LEAST_S, min(_SILENCE_MOST_S, node_timeout_s) if spoke else node_timeout_s)
        silent_s = self._silent_s
        if silent_s <= patience_s:
            return ""
        if spoke:
            # Whether it was ended, hangs, or can't write, nobody here can tell.
            return f"the head {head} runs, and its agent was silent for {silent_s:.0f} s{self._at([head])}"
        silence = f"the head {head} runs, but its agent has reported nothing for {silent_s:.0f} s"
        return f"{silence}: does the image run user data, with Python 3.9 or newer?"

    def _at(self, heads: Sequence[str]) -> str:
        step = next((self._progress[head] for head in reversed(heads) if head in self._progress), "")
        return f" during its step '{step}'" if step else ""
