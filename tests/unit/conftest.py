"""Unit tests never look at the clusters of whoever runs them, and wait for no disk."""

from __future__ import annotations

import os

import pytest

from phalanx import guest_file


@pytest.fixture(scope="session", autouse=True)
def no_state_of_the_user(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PHALANX_STATE_DIR", raising=False)
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("home") / "state"))
        yield


@pytest.fixture(autouse=True)
def no_mounts_of_others(monkeypatch):
    """What FUSE serves is asked by a process; other tests mount it below the same directories at the same time."""
    monkeypatch.setattr(guest_file, "_fuse_mounts", list)


@pytest.fixture(scope="session", autouse=True)
def no_wait_for_the_disk():
    """What outlasts a power failure is tested where it fails (tests/parts/test_power_failures.py)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield
