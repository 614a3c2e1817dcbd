"""How far the ranks of an attempt are, as their starters count it."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from phalanx.node.validate import Invalid
from phalanx.runner.rank_progress import Progress, RankProgress, checked, in_words, values_in_words

if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterable, List, Sequence, Tuple

_MOST_RANKS = 65_536
# Keepers say the names of ranks, and any process of the job may say them.
_RANK = re.compile(r"[\w@.+ -]{1,100}")
_LONGEST_PROBLEM = 200


class Steps:
    """Takes the starters' reports; one per runner, and new ranks for each attempt."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ranks: Dict[str, Tuple[str, float, Progress]] = {}  # rank → its node, when its step changed, and progress
        self._last = ""
        self._problem = ""
        self.advanced_at = 0.0  # when any rank's step last changed; 0: no step is known

    def begin(self) -> None:
        """Begin an attempt: nothing is known of its ranks."""
        self._ranks, self.advanced_at = {}, 0.0

    def take(self, node: str, ranks: Iterable[Tuple[str, Sequence[Any]]], problem: str) -> None:
        """Take what a node reports of its ranks, by name; what no rank can have said is dropped."""
        self._problem = problem[:_LONGEST_PROBLEM] or self._problem
        for rank, value in ranks:
            if not _RANK.fullmatch(rank) or len(self._ranks) >= _MOST_RANKS:
                continue
            try:
                progress = checked(value)
            except Invalid:
                continue
            _, changed_at, before = self._ranks.get(rank, (node, self._clock(), Progress()))
            if progress.step != before.step:
                changed_at = self.advanced_at = self._clock()
            self._ranks[rank] = (node, changed_at, progress)
        self._last = in_words(self.ranks()) or self._last

    def ranks(self) -> List[RankProgress]:
        """Return the progress of each rank that has any."""
        now = self._clock()
        return [RankProgress(rank, node, now - at, progress) for rank, (node, at, progress) in self._ranks.items()]

    def answer(self) -> List[Dict[str, Any]]:
        """Return it as plain data, for clients."""
        return [one._asdict() for one in self.ranks()]

    def summary(self) -> List[str]:
        """Return what is said of it at the job's end: how far it came, with its straggler and its last values."""
        values = values_in_words(self.ranks())
        lines = (self._last, values and f"last values: {values}", self._problem)
        return [line for line in lines if line]
