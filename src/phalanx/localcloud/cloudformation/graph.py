"""The order of things: what depends on what, and what may go next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def find_cycle(dependencies: Mapping[str, Iterable[str]]) -> list[str]:
    """Names that depend on themselves, directly or around a circle; empty when there is an order."""
    left = {name: set(needs) & set(dependencies) for name, needs in dependencies.items()}
    while True:
        free = {name for name, needs in left.items() if not needs}
        if not free:
            return _on_a_circle(left)
        left = {name: needs - free for name, needs in left.items() if name not in free}


def _on_a_circle(left: Mapping[str, set[str]]) -> list[str]:
    # What merely waits for a circle is not part of it: strip names that nothing left needs.
    names = set(left)
    while True:
        needed = {need for name in names for need in left[name]}
        if needed >= names:
            return sorted(names)
        names &= needed


def reverse(dependencies: Mapping[str, Iterable[str]]) -> dict[str, set[str]]:
    """Who must be gone before each name may go: the arrows turned round."""
    turned: dict[str, set[str]] = {name: set() for name in dependencies}
    for name, needs in dependencies.items():
        for need in needs:
            turned.setdefault(need, set()).add(name)
    return turned


class Walk:
    """Hands out names whose dependencies are done, in the given order; independent names go side by side."""

    def __init__(self, dependencies: Mapping[str, Iterable[str]]) -> None:
        self._waiting = {name: {need for need in needs if need in dependencies} for name, needs in dependencies.items()}
        self._started: set[str] = set()

    def ready(self) -> list[str]:
        """Names that may start now; each is handed out once."""
        names = [name for name, needs in self._waiting.items() if not needs]
        for name in names:
            del self._waiting[name]
        self._started.update(names)
        return names

    def done(self, name: str) -> None:
        """`name` is ready: what waited for it may go."""
        self._started.discard(name)
        for needs in self._waiting.values():
            needs.discard(name)

    def failed(self, name: str) -> None:
        """`name` will never be ready: what waits for it stays."""
        self._started.discard(name)

    def stop(self) -> None:
        """Starts nothing more."""
        self._waiting.clear()

    @property
    def running(self) -> bool:
        """Whether something that was handed out has not ended yet."""
        return bool(self._started)
