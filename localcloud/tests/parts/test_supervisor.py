"""The channel between the API process and the supervisor when one end fails: nothing hangs, nothing is left."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from localcloud.nodes import client, wire
from localcloud.nodes.client import NodeRunner
from localcloud.nodes.machine import Machine, NodeError, Site
from localcloud.nodes.supervisor import Supervisor


def test_a_supervisor_that_hangs_does_not_block_its_clients(monkeypatch):
    monkeypatch.setattr(client, "_SEND_TIMEOUT_S", 1)
    ours, theirs = wire.pair()
    with ours, theirs:
        ours.setblocking(False)
        with pytest.raises(BlockingIOError):
            while True:
                wire.send(ours, {"call": "nobody reads this"})
        ours.setblocking(True)
        runner = NodeRunner(ours)
        with pytest.raises(NodeError, match="kill: the supervisor accepts no requests"):
            runner.kill("i-1")
        assert not runner._waiting and not runner._lock.locked()
        theirs.close()


def test_a_boot_that_can_t_fork_leaves_nothing(tmp_path):
    def refuse(*_):
        raise BlockingIOError("Resource temporarily unavailable")

    machine = Machine(
        "i-1", "vpc-1", "10.0.0.0/16", "10.0.1.4", "ip", "c5.large", 2, 4096, b"", "us-east-1", "us-east-1a", ()
    )
    volumes = SimpleNamespace(mount=lambda path, *_: path.mkdir(parents=True), unmount=lambda path: None)
    supervisor = SimpleNamespace(
        _nodes={},
        _vpc=lambda _: SimpleNamespace(serve=lambda _: None),
        _wait_for_image=lambda: None,
        _site=Site(tmp_path, "range", (), ()),
        _disks=volumes,
        _shm=volumes,
        _fork_node=refuse,
        _limit_memory=lambda *_: None,
    )
    supervisor._start = partial(Supervisor._start, supervisor)
    supervisor._discard = partial(Supervisor._discard, supervisor)
    before = list(Path("/proc/self/fd").iterdir())
    with pytest.raises(BlockingIOError):
        Supervisor._do_boot(supervisor, {"id": 1, "machine": machine.to_json()})  # type: ignore[arg-type]
    assert (list(tmp_path.glob("nodes/*")), len(list(Path("/proc/self/fd").iterdir()))) == ([], len(before))
