"""Unit tests never look at the clusters of whoever runs them."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def no_state_of_the_user(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PHALANX_STATE_DIR", raising=False)
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("home") / "state"))
        yield
