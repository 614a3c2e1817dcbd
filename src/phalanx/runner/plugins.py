"""What only the zipapp's __main__ knows: the launchers and the schedulers, by name."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    from phalanx.runner.batch.scheduling import Scheduler
    from phalanx.runner.process import Launcher


class Plugins:
    """`launcher` raises RefusedError for a name that it does not know."""

    def __init__(self, launcher: Callable[[str], Launcher], scheduler: Callable[[str], Scheduler]) -> None:
        self.launcher = launcher
        self.scheduler = scheduler
