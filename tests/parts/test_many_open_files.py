"""A program may hold more open files than select() can watch (1,024) when it uses phalanx, and so may its daemons."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake_jobs import run, wait_for_line

from localcloud.daemon import lifecycle
from phalanx.jobs.job import JobSpec, submit
from phalanx.jobs.tunnel import Program, Service
from phalanx.runner.environments.build_log import BuildLog
from phalanx.runner.head.engine import output_of
from phalanx.runner.verbs.stop import stop

pytestmark = pytest.mark.usefixtures("many_open_files")


def test_a_job_runs(two_nodes, code):
    lines, status = run(two_nodes, code, "echo", "here", processes=1)
    assert (lines, status.state.value) == (["0: here"], "succeeded")


def test_a_job_is_stopped(two_nodes, code, monkeypatch, capfd):
    for name, value in two_nodes.env.items():
        monkeypatch.setenv(name, value)
    job = submit(two_nodes, JobSpec(("sh", "-c", "echo up; sleep 60"), "exec", directory=code, processes=1))
    wait_for_line(job.follow(), "up")
    assert stop(job.directory, "", 30) == 0
    assert json.loads(capfd.readouterr().out)["state"] == "stopped"


def test_a_program_on_the_head_starts_and_ends(two_nodes):
    server = f"exec {sys.executable} -m http.server --bind 127.0.0.1 {{port}}"
    service = Service(two_nodes, Program("server", ("sh", "-c", server), "sh"))
    try:
        assert service.start()
        assert not service.ended()
        assert service.end().left == ()
    finally:
        service.close()


def test_an_engine_is_asked():
    assert output_of(["echo", "Open MPI"], {"PATH": "/usr/bin:/bin"}) == "Open MPI\n"


def test_the_output_of_a_build_is_kept(tmp_path, capfd):
    with subprocess.Popen(["echo", "Collecting"], stdout=subprocess.PIPE) as build:
        assert BuildLog(str(tmp_path)).follow(build) == 0
    assert capfd.readouterr().out == (tmp_path / "environment.log").read_text() == "Collecting\n"


def test_the_local_cloud_reports_why_it_can_not_start(tmp_path: Path, monkeypatch):
    def fails(*_arguments):
        raise RuntimeError("no memory")

    monkeypatch.setattr(lifecycle, "_check_moto", lambda: None)
    monkeypatch.setattr(lifecycle, "_mode", lambda _wanted: ("single", ()))
    monkeypatch.setattr(lifecycle, "_run", fails)
    with pytest.raises(lifecycle.CannotStart, match="no memory"):
        lifecycle.start(lifecycle.Options(tmp_path, (), (), "auto"))


def test_a_daemon_that_is_terminated_while_it_reports_does_not_go_on_as_its_starter(tmp_path: Path, monkeypatch):
    pids: list[int] = []
    fork, starter = os.fork, os.getpid()

    def remembered() -> int:
        pids.append(fork())
        return pids[-1]

    def terminated(writer: int, _text: bytes) -> None:
        os.close(writer)
        raise SystemExit(143)

    monkeypatch.setattr(lifecycle, "_check_moto", lambda: None)
    monkeypatch.setattr(lifecycle, "_mode", lambda _wanted: ("single", ()))
    monkeypatch.setattr(lifecycle, "_run", lambda *_arguments: 1 / 0)
    monkeypatch.setattr(lifecycle, "_report", terminated)
    monkeypatch.setattr(os, "fork", remembered)
    try:
        with pytest.raises(lifecycle.CannotStart, match="ended while it started"):
            lifecycle.start(lifecycle.Options(tmp_path, (), (), "auto"))
    finally:
        if os.getpid() != starter:
            (tmp_path / "escaped").touch()
            os._exit(1)
    os.waitpid(pids[0], 0)
    assert not (tmp_path / "escaped").exists()
