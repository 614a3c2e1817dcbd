"""A pytest plug-in: unit tests must not start processes or open ports; such tests belong in tests/parts."""

from __future__ import annotations

import sys
from collections.abc import Generator

import pytest

REFUSED = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "socket.bind"})
_running: list[str] = []


def _refuse(event: str, _arguments: tuple[object, ...]) -> None:
    if _running and event in REFUSED:
        raise AssertionError(f"{_running[-1]} is a unit test, and asks for {event}: its place is tests/parts")


def _watched(item: pytest.Item) -> Generator[None, object, object]:
    if item.path.parent.name != "unit":
        return (yield)
    _running.append(item.nodeid)
    try:
        return (yield)
    finally:
        _running.pop()


# The teardown is not watched, because after the last test it also ends the shared clusters.
@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    return (yield from _watched(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    return (yield from _watched(item))


sys.addaudithook(_refuse)
