"""Messages between the local cloud's processes."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest

from localcloud.nodes import wire

DESCRIPTORS = Path("/proc/self/fd")


@pytest.mark.parametrize("nodes", [1, 300, 512, 5000])
def test_a_message_of_any_size_arrives_and_leaves_no_descriptor(nodes):
    states = {"id": 1, "nodes": [{"instance_id": f"i-{number:017x}", "console": "x" * 400} for number in range(nodes)]}
    before, (ours, theirs) = len(list(DESCRIPTORS.iterdir())), wire.pair()
    with closing(ours), closing(theirs):
        wire.send(ours, states)
        assert wire.receive(theirs) == (states, [])
    assert len(list(DESCRIPTORS.iterdir())) == before


def test_descriptors_come_along():
    ours, theirs = wire.pair()
    with closing(ours), closing(theirs), open(os.devnull) as file:
        wire.send(ours, {"id": 2}, (file.fileno(),))
        message, (descriptor,) = wire.receive(theirs) or ({}, [-1])
        assert message == {"id": 2} and os.fstat(descriptor).st_rdev == os.fstat(file.fileno()).st_rdev
        os.close(descriptor)
