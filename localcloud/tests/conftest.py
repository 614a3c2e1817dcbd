"""The plug-ins of all tests of the local cloud, and a cloud of which tests have only the API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from stack_fakes import Stacks

pytest_plugins = ["beside_others", "untouched", "open_files", "node_lab"]


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stacks]:
    """The whole API of a local cloud, for the tests of a module."""
    # Here, because unit tests do without moto, which takes seconds to import.
    from fleet_fakes import forget_resources
    from stack_fakes import stacks

    with stacks(tmp_path_factory.mktemp("state")) as running:
        yield running
        forget_resources(running.context.account)
