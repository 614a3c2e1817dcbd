"""Dependency graphs: finds cycles, reverses them, and walks them in order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def find_cycle(dependencies: Mapping[str, Iterable[str]]) -> list[str]:
    """Return the names on a cycle; none when the graph can be ordered."""
    left = {name: set(needs) & set(dependencies) for name, needs in dependencies.items()}
    while True:
        free = {name for name, needs in left.items() if not needs}
        if not free:
            return _on_a_cycle(left)
        left = {name: needs - free for name, needs in left.items() if name not in free}


def _on_a_cycle(left: Mapping[str, set[str]]) -> list[str]:
    # Strip the names that no other needs: they depend on a cycle without being part of it.
    names = set(left)
    while True:
        needed = {need for name in names for need in left[name]}
        if needed >= names:
            return sorted(names)
        names &= needed


def reverse(dependencies: Mapping[str, Iterable[str]]) -> dict[str, set[str]]:
    """Reverse the graph: map each name to the names that depend on it."""
    turned: dict[str, set[str]] = {name: set() for name in dependencies}
    for name, needs in dependencies.items():
        for need in needs:
            turned.setdefault(need, set()).add(name)
    return turned


class Walk:
    """Yields the names whose dependencies are done, in the given order; independent names can run in parallel."""

    def __init__(self, dependencies: Mapping[str, Iterable[str]]) -> None:
        self._waiting = {name: {need for need in needs if need in dependencies} for name, needs in dependencies.items()}
        self._started: set[str] = set()

    def ready(self) -> list[str]:
        """Return the names that may start now, each only once."""
        names = [name for name, needs in self._waiting.items() if not needs]
        for name in names:
            del self._waiting[name]
        self._started.update(names)
        return names

    def done(self, name: str) -> None:
        """Mark `name` as done, so that what depends on it may start."""
        self._started.discard(name)
        for needs in self._waiting.values():
            needs.discard(name)

    def stop(self) -> None:
        """Drop all names that have not started."""
        self._waiting.clear()

    @property
    def running(self) -> bool:
        """Whether a name that started has not ended yet."""
        return bool(self._started)
