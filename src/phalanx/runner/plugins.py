"""The launchers and the schedulers, by name, which only the zipapp's __main__ imports."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    from phalanx.runner.batch.scheduling import Scheduler
    from phalanx.runner.process import Launcher


class Plugins:
    """Finds launchers and schedulers; `launcher` raises RefusedError for an unknown name."""

    def __init__(self, launcher: Callable[[str], Launcher], scheduler: Callable[[str], Scheduler]) -> None:
        self.launcher = launcher
        self.scheduler = scheduler
