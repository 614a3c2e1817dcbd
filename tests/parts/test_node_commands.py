"""Commands that the agent runs: real processes, whose output is limited."""

from __future__ import annotations

import pytest

from phalanx.node.command import CommandError, run


def test_a_command_that_writes_too_much_is_ended():
    endless = ["sh", "-c", "sleep 0.1; exec cat /dev/zero"]
    with pytest.raises(CommandError) as caught:
        run(endless, 20, most_bytes=1 << 20)
    assert caught.value.status == -25  # SIGXFSZ, and not 124: the time was not up


def test_a_command_may_write_as_much_as_allowed():
    assert len(run(["sh", "-c", "sleep 0.1; head -c 1048576 /dev/zero"], 20, most_bytes=1 << 20)) == 1 << 20
