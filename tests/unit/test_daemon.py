"""The agent's daemon: how it handles errors, its own and the cloud's."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from phalanx.node import __main__ as program
from phalanx.node import daemon, disk, failure, worker
from phalanx.node.aws_client import AwsError
from phalanx.node.command import CommandError


class Enough(BaseException):
    """Ends the loop under test."""


@pytest.fixture
def serve(monkeypatch, tmp_path):
    """Serve as a worker whose every try fails with `error`, `tries` times; return the reported errors."""

    def run(error: Exception, tries: int, member: bool = False, step: str = "") -> list[str]:
        reported: list[str] = []
        clock = [0.0]
        left = [error] * tries

        def work(_agent) -> None:
            raise left.pop() if left else Enough

        if member:
            (tmp_path / "opt/phalanx").mkdir(parents=True)
            (tmp_path / "opt/phalanx/roster.json").write_text("{}")
        agent = SimpleNamespace(
            settings=SimpleNamespace(head=False, node_timeout_s=100, metrics="", data=""),
            log=SimpleNamespace(ship=lambda _: None),
            stream=None,
            step=step,
        )
        monkeypatch.setattr(daemon, "Agent", lambda *_: agent)
        monkeypatch.setattr(daemon.firewall, "watch", lambda _: None)
        monkeypatch.setattr(daemon.logins, "watch", lambda: None)
        monkeypatch.setattr(daemon.credentials, "serve", lambda *_: None)
        monkeypatch.setattr(daemon.shared_memory, "serve", lambda *_: None)
        monkeypatch.setattr(worker, "serve", work)
        monkeypatch.setattr(daemon.time, "sleep", lambda seconds: clock.append(clock[-1] + seconds))
        monkeypatch.setattr(daemon.time, "monotonic", lambda: clock[-1])
        monkeypatch.setattr(failure, "report", lambda _s, _a, step, error: reported.append(f"{step}: {error}"))
        with pytest.raises(Enough):
            daemon.serve(agent.settings, SimpleNamespace(), str(tmp_path), agent)
        return reported

    return run


def test_a_bug_of_ours_is_reported_at_once(serve):
    assert serve(KeyError("x"), 1) == ["agent: 'x'"]


def test_the_clouds_errors_are_reported_when_they_last(serve):
    refused = AwsError("PutItem", "AccessDenied", "no")
    assert serve(refused, 18) == []
    assert serve(refused, 19) == ["agent: PutItem: AccessDenied: no"]


def test_a_member_survives_the_clouds_errors(serve):
    assert serve(OSError("unreachable"), 9, member=True) == []


@pytest.mark.parametrize(
    ("error", "makes_way"), [(CommandError("nvidia-smi -L", 0, "0 of 8"), True), (KeyError(), False)]
)
def test_a_head_that_lost_a_gpu_makes_way_and_one_with_a_bug_does_not(monkeypatch, serve, error, makes_way):
    ended: list[object] = []
    monkeypatch.setattr(failure, "make_way", ended.append)
    serve(error, 1, step="GPUs")
    assert bool(ended) is makes_way


@pytest.mark.parametrize(("command", "reported"), [("serve", []), ("boot", ["no answer"])])
def test_a_restart_without_the_metadata_service_is_systemds_to_repeat_and_no_failed_boot(
    monkeypatch, tmp_path, command, reported
):
    """A head would drop a member that reports a failed boot."""
    (tmp_path / "opt/phalanx").mkdir(parents=True)
    (tmp_path / "opt/phalanx/config.json").write_text("{}")
    monkeypatch.setenv("PHALANX_ROOT", str(tmp_path))
    seen: list[str] = []

    def run(*_: object) -> int:
        raise OSError("no answer")

    monkeypatch.setattr(program.Settings, "of", lambda _: SimpleNamespace())
    monkeypatch.setattr(program, "_run", run)
    monkeypatch.setattr(program, "_report", lambda _config, _metadata, _patience, error: seen.append(str(error)))
    assert (program.main([command]), seen) == (1, reported)


def test_the_agent_comes_back_with_the_machine_from_the_first_moment_of_its_boot(tmp_path):
    (tmp_path / "opt/phalanx").mkdir(parents=True)
    for _ in range(2):
        disk.begin(str(tmp_path))
    wanted = tmp_path / "etc/systemd/system/multi-user.target.wants/phalanx.service"
    assert wanted.resolve() == tmp_path / "etc/systemd/system/phalanx.service"
    assert "agent serve\nRestart=always\nRestartPreventExitStatus=0\n" in wanted.read_text()


def test_systemd_starts_it_where_it_runs_the_machine(monkeypatch, tmp_path):
    ran: list[str] = []
    monkeypatch.setattr(daemon, "run", lambda argv, _: ran.append(" ".join(argv)))
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    daemon.start(SimpleNamespace(root=str(tmp_path)))  # type: ignore[arg-type]
    assert ran == ["systemctl daemon-reload", "systemctl restart phalanx"]
