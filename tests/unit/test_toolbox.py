"""Commands on the head that do not end: a shared directory that does not answer is named as the cause."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.errors import JobError
from phalanx.jobs import toolbox
from phalanx.ssh.remote import Completed, NotEnded


class Head:
    """Lets the first command run into its deadline, and answers the next one with `status`."""

    def __init__(self, status: int) -> None:
        self._status = status
        self._commands = 0

    def run(self, command: str, **_options: Any) -> Completed:
        self._commands += 1
        if self._commands == 1:
            raise NotEnded("`list` did not end within 30 s")
        assert "/efs" in command
        return Completed(self._status, b"", b"")


def test_a_shared_directory_that_does_not_answer_is_named():
    with pytest.raises(JobError, match="the shared directory /efs does not answer"):
        toolbox.run(Head(137), "/efs", "list", timeout_s=30)


def test_a_command_that_is_slow_itself_stays_the_cause():
    with pytest.raises(NotEnded):
        toolbox.run(Head(0), "/efs", "list", timeout_s=30)
