"""Commands on the head while the shared directory does not answer: it is named, and running jobs can be stopped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from error_codes import raises_code

from phalanx.errors import SharedSilent
from phalanx.jobs import toolbox
from phalanx.jobs.halting import halt
from phalanx.runner.files.job_record import JobRecord
from phalanx.runner.files.job_status import JobStatus
from phalanx.runner.names import RUNNER_GONE, STILL_RUNS
from phalanx.runner.verbs import stop
from phalanx.ssh.remote import Broken, Completed, NotEnded, Remote

SILENCE = SharedSilent("the shared directory /efs does not answer")
JOB = JobRecord(("true",), "exec", id="J1")


class Head:
    """Lets the first command run into its deadline, if `hangs`, and answers the next one with `status`."""

    def __init__(self, status: int, hangs: bool = False) -> None:
        self._status = status
        self._hangs = hangs

    def run(self, command: str, **_options: Any) -> Completed:
        if self._hangs:
            self._hangs = False
            raise NotEnded("`list` did not end within 30 s")
        assert "/efs" in command
        return Completed(self._status, b"", b"")


class Halting:
    """A head that answers `halt` with this."""

    def __init__(self, status: int, stdout: str = "", stderr: str = "") -> None:
        self._completed = Completed(status, stdout.encode(), stderr.encode())

    def run(self, command: str, *, input: bytes, **_options: Any) -> Completed:
        assert "/efs" not in command
        assert input.startswith(b"PK"), "the zipapp is sent with the command"
        return self._completed


def halting(status: int, stdout: str = "", stderr: str = "") -> Remote:
    return cast(Remote, Halting(status, stdout, stderr))


@pytest.mark.parametrize("hangs", [False, True])
def test_a_shared_directory_that_does_not_answer_is_named(hangs):
    with raises_code("shared-silent", "/efs"):
        toolbox.run(cast(Remote, Head(75, hangs)), "/efs", "list", timeout_s=30)


def test_a_command_that_is_slow_itself_stays_the_cause():
    with pytest.raises(NotEnded):
        toolbox.run(cast(Remote, Head(0, hangs=True)), "/efs", "list", timeout_s=30)


def test_a_job_that_is_stopped_without_the_directory_is_reported_as_what_its_runner_says():
    state = {**JobStatus.first(JOB).to_record(), "state": "stopped", "message": "stopped on request"}
    status = halt(halting(0, f"a login's greeting\n{json.dumps(state)}\n"), "/efs", "J1", SILENCE)
    assert status.state.value == "stopped"
    assert status.message == "stopped on request; its record follows when /efs answers"


@pytest.mark.parametrize(
    ("status", "stderr", "reason"),
    [
        (1, "of the running jobs (J2, J3), 0 match", "does not answer; of the running jobs (J2, J3), 0 match\n.*one"),
        (2, "J1", "does not answer, and job J1 has not ended after 120 s\nIts runner is still stopping it"),
        (3, "J1", "does not answer, and the runner of job J1 has ended without a final state\n.*when it answers"),
        (255, "", "does not answer, and the head could not be asked (status 255)\n.*again"),
        (255, "Connection closed", "the head could not be asked (status 255): Connection closed\n.*again"),
    ],
)
def test_a_job_that_cant_be_stopped_without_the_directory_is_reported_with_the_reason(status, stderr, reason):
    with pytest.raises(SharedSilent, match=reason.replace("(", r"\(").replace(")", r"\)")):
        halt(halting(status, stderr=stderr), "/efs", "J1", SILENCE)


@pytest.mark.parametrize(("took_s", "status"), [(0.0, RUNNER_GONE), (9.0, STILL_RUNS)])
def test_a_runner_that_ends_without_a_state_is_told_from_one_that_takes_long(monkeypatch, capfd, took_s, status):
    clock = [0.0]

    def request_stop(_job: str, _timeout_s: float) -> Iterator[bytes]:
        clock[0] += took_s
        yield b'{"id"'

    monkeypatch.setattr(stop, "running", lambda: ["J1"])
    monkeypatch.setattr(stop, "request_stop", request_stop)
    monkeypatch.setattr(stop.time, "monotonic", lambda: clock[0])
    assert stop.halt("J1", 9.0) == status
    assert capfd.readouterr() == ("", "J1\n")


def test_what_is_no_state_of_a_job_is_refused():
    with raises_code("invalid-answer"):
        halt(halting(0, '{"state": "stopped"}\n'), "/efs", "J1", SILENCE)


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("", ""),
        ("welcome\nbelongs to hadoop, with mode 755\n", "belongs to hadoop, with mode 755"),
        ("welcome\n", ""),
        ("belongs to \x1b[31mroot, with mode 755", ""),
    ],
)
def test_only_whose_the_directory_is_is_believed(said, shown):
    assert toolbox.closed(answering(said), "/efs") == shown


def answering(said: str) -> Remote:
    answers = SimpleNamespace(run=lambda *_, **__: Completed(0, said.encode(), b""))
    return cast(Remote, answers)


@pytest.mark.parametrize(("breaks", "copies"), [(0, 1), (3, 4), (4, None)])
def test_a_copy_is_repeated_over_a_new_connection_some_times(breaks, copies):
    made, connected, told = [], [], []

    def copy() -> int:
        made.append(1)
        if len(made) <= breaks:
            raise Broken("the connection broke")
        return len(made)

    remote = cast(Remote, SimpleNamespace(connect=lambda: connected.append(1)))
    if copies is None:
        with raises_code("connection-lost"):
            toolbox.persist(lambda: remote, copy)
        return
    assert toolbox.persist(lambda: remote, copy, lambda: told.append(1)) == copies
    assert len(connected) == len(told) == breaks
