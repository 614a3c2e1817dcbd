"""A plug-in: the whole API of a local cloud, for the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from stack_fakes import Stacks


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stacks]:
    # Here, because unit tests do without moto, which takes seconds to import.
    from fleet_fakes import forget_resources
    from stack_fakes import stacks

    with stacks(tmp_path_factory.mktemp("state")) as running:
        yield running
        forget_resources(running.context.account)
