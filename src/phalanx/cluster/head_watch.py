"""Is the head that a creation waits for still a hope? Its progress in the roster table, and its launches, tell."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from phalanx.clouds.protocol import Cloud, Heads

LOOK_S = 5.0
MOST_LAUNCHES = 3
"""A machine may fail; of the third head in a row it is no accident."""
_SILENCE_MOST_S = 60.0
_SILENCE_LEAST_S = 15.0


class HeadWatch:
    """Feed it what the table holds; `verdict` says why there will be no cluster, "" while there may be one."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self._progress: Mapping[str, str] = {}
        self._over: Heads | None = None
        self._heard_at = self._looked_at = time.monotonic()

    def hear(self, progress: Mapping[str, str]) -> None:
        """The item `progress`: the head lives when it has changed. (The clocks of here and there may differ.)"""
        if progress != self._progress:
            self._progress, self._heard_at = progress, time.monotonic()

    def verdict(self, group: str, node_timeout_s: float) -> str:
        """Ask Auto Scaling about the head's group; seldom, and only while it is not known to be well."""
        if self._over:
            return self._each_ended(self._over)
        now = time.monotonic()
        if now - self._looked_at < min(LOOK_S, node_timeout_s):
            return ""
        self._looked_at = now
        heads = self._cloud.heads(group)
        if len(heads.launched) >= MOST_LAUNCHES:
            # Told at the next call: heads may have gone on between the last words that were heard and their end.
            self._over = heads
            return ""
        return self._silence(heads, now - self._heard_at, node_timeout_s)

    def _each_ended(self, heads: Heads) -> str:
        # The newest has perhaps only begun: its step is not where the others ended.
        at = self._at(heads.launched[: -1 if heads.running else None])
        return f"{len(heads.launched)} heads were launched one after another, and each ended{at}: {heads.why}"

    def _silence(self, heads: Heads, silent_s: float, node_timeout_s: float) -> str:
        """Only a head that runs can be blamed for its silence: Auto Scaling replaces one that does not."""
        if not heads.launched or not heads.running:
            self._heard_at = time.monotonic()
            return ""
        head = heads.launched[-1]
        spoke = self._progress.get("head") == head
        patience_s = max(_SILENCE_LEAST_S, min(_SILENCE_MOST_S, node_timeout_s)) if spoke else node_timeout_s
        if silent_s <= patience_s:
            return ""
        if spoke:
            return f"the agent of the head {head} was ended{self._at([head])}: silent for {silent_s:.0f} s"
        told = f"the head {head} runs, but its agent has said nothing for {silent_s:.0f} s"
        return f"{told}: does the image run user data, with Python 3.9 or newer?"

    def _at(self, heads: Sequence[str]) -> str:
        step = next((self._progress[head] for head in reversed(heads) if head in self._progress), "")
        return f" during its step '{step}'" if step else ""
