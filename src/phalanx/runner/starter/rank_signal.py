"""Passes the notice on to the ranks that the job's end is near: a signal at which a training script saves its state."""

from __future__ import annotations

import signal

from phalanx.runner.reaper import children_of, kill, processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Mapping, Optional, Set

# What Slurm's users choose for the same purpose (`sbatch --signal=USR1@120`).
SIGNAL = signal.SIGUSR1


class Notice:
    """Signals each rank once, as soon as a process of it catches the signal: any other would be ended by it.

    Of a rank's processes only the first that catches it is signalled, counted from its own one downwards: data loaders
    inherit the handler of the script that started them.
    """

    def __init__(self) -> None:
        self._reason = ""
        self._reached: Set[int] = set()

    def give(self, reason: str) -> None:
        """Begin to pass this on; ranks that were signalled for another reason are signalled again."""
        if reason != self._reason:
            self._reason, self._reached = reason, set()

    def pass_on(self, ranks: Mapping[int, int]) -> None:
        """Signal the ranks (process number → pid) that catch the signal now and have not been signalled."""
        waiting = {number: pid for number, pid in ranks.items() if self._reason and number not in self._reached}
        children = children_of(processes()) if waiting else {}
        for number, pid in waiting.items():
            found = _first_catcher(pid, children)
            if found is not None:
                self._reached.add(number)
                kill(found, SIGNAL)


def _first_catcher(pid: int, children: Dict[int, List[int]]) -> Optional[int]:
    todo = [pid]
    while todo:
        one = todo.pop(0)
        if _catches(one):
            return one
        todo += children.get(one, ())
    return None


def _catches(pid: int) -> bool:
    """Return whether the process has a handler for the signal, by its mask in /proc (proc_pid_status(5))."""
    try:
        with open(f"/proc/{pid}/status") as file:
            mask = next(line.split()[1] for line in file if line.startswith("SigCgt:"))
    except (OSError, StopIteration):
        return False  # it has ended
    return bool(int(mask, 16) >> (SIGNAL - 1) & 1)
