"""A pytest plug-in: in parallel runs, the tests of a file stay together, and the longest start first."""

from __future__ import annotations

import gc
import itertools
import os
import re
import signal
from collections.abc import Generator
from pathlib import Path

import pytest
from shared import SHARED

# In the background of a script SIGINT is ignored, which the programs that tests start would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)


_numbers = itertools.count()


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new directory. pytest's own fixture lists all earlier ones for each test, to find a number that is free."""
    name = re.sub(r"\W", "_", request.node.name)[:26]
    return tmp_path_factory.mktemp(f"{name}-{next(_numbers)}", numbered=False)


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Keep long texts out of the names of tests."""
    return f"{argname} of {len(val)}" if isinstance(val, (str, bytes)) and len(val) > 150 else None


def pytest_collection_finish() -> None:
    """Exempt what the imports created from garbage collection, which would take a tenth of the unit tests' time."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None, None, None]:
    """In parallel runs (`make test`), keep tests of a file or of a shared lab together and start the longest first."""
    is_beside_others = "PYTEST_XDIST_WORKER" in os.environ
    if is_beside_others:
        for item in items:
            item.add_marker(pytest.mark.xdist_group(_group(item)))
    # xdist reads the marks, and pytest-randomly shuffles.
    yield
    if is_beside_others:
        items.sort(key=_place)


def _group(item: pytest.Item) -> str:
    """Return the name of the tests that one process runs one after the other.

    The tests on the shared cluster are several groups: in one, they would go on alone when all others have ended.
    Each process then has a shared cluster of its own, from the first of these groups to the last.
    """
    fixture = _shared(item)
    return f"cluster.{item.path.stem}" if fixture == "cluster" else fixture or item.path.stem


def _shared(item: pytest.Item) -> str:
    """Return what the test shares with those of other files: a fixture's name, or ""."""
    fixtures = item._fixtureinfo.name2fixturedefs if isinstance(item, pytest.Function) else {}
    # A module may have a fixture of its own with that name.
    shared = {name for name, definitions in fixtures.items() if definitions[-1].scope == "session"}
    return min({"engines", "cluster", "shared_lab"} & shared, default="")


def _place(item: pytest.Item) -> int:
    order = (
        "test_rights",
        "engines",
        "cluster.test_examples",
        "cluster.test_data_in_s3",
        "cluster",
        "test_deaths",
        "shared_lab",
        "test_private_clusters",
        "test_via",
        "test_emr_jobs",
        "test_emr_on_nodes",
        "test_reservations",
        "test_weather_on_clusters",
        "test_torch",
        "tests/attacks",
        "tests/cluster",
        "tests/nodes",
        "tests/fuzz",
        "tests/parts",
        "tests/unit",
    )
    names = (_group(item), _shared(item), f"tests/{item.path.parent.name}")
    return min(order.index(name) for name in names if name in order)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, None, None]:
    """In parallel runs, take a shared cluster down after the last of its tests, while other workers continue."""
    yield
    if "PYTEST_XDIST_WORKER" in os.environ:
        for name in set(SHARED) - ({_shared(nextitem)} if nextitem else set()):
            SHARED.pop(name).close()
