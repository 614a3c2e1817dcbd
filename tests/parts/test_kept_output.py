"""Output that was fetched is on this machine, and `phalanx logs` shows it when the cluster is gone."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from error_codes import raises_code
from fake_jobs import run

from phalanx.cli import kept_output, logs
from phalanx.cli.following import follow
from phalanx.errors import ClusterError, ClusterGone
from phalanx.jobs.ended_jobs import ended_jobs
from phalanx.jobs.job import JobSpec, OutputLine, submit


class Logs:
    """`phalanx logs` on a cluster that is there, or gone."""

    def __init__(self, cluster, monkeypatch) -> None:
        self.cluster = cluster
        self.error: ClusterError | None = None
        monkeypatch.setattr(logs, "load_cluster", self._load)
        monkeypatch.setattr(logs, "cluster_name", lambda *_: cluster.name)

    def _load(self, *_):
        if self.error:
            raise self.error
        return self.cluster

    def __call__(self, *arguments: str) -> str:
        done = CliRunner().invoke(logs.command, arguments, standalone_mode=False)
        if done.exception:
            raise done.exception
        return done.stdout


@pytest.fixture
def phalanx_logs(two_nodes, monkeypatch, tmp_path) -> Logs:
    monkeypatch.setenv("PHALANX_STATE_DIR", str(tmp_path / "state"))
    return Logs(two_nodes, monkeypatch)


@pytest.mark.parametrize("gone", [ClusterGone("deleted"), ClusterError("unknown", code="no-cluster")])
def test_what_logs_has_fetched_is_shown_when_the_cluster_is_gone(two_nodes, code, phalanx_logs, gone):
    _, status = run(two_nodes, code, "sh", "-c", "echo out; echo more", processes=2, name="trial")
    shown = phalanx_logs()
    assert phalanx_logs("--attempt", "0") == shown
    with raises_code("no-attempt", "attempt 9"):
        phalanx_logs("--attempt", "9")
    assert "[0] out" in shown and "[1] out" in shown
    phalanx_logs.error = gone
    for reference in ((), (status.id,), (status.id[-6:],), ("trial",)):
        assert sorted(phalanx_logs(*reference).splitlines()) == sorted(shown.splitlines())
    assert phalanx_logs("--rank", "1") == "[1] out\n[1] more\n"
    assert phalanx_logs("--rank", "1", "--raw") == "out\nmore\n"
    assert phalanx_logs("--stderr") == ""
    assert all(line[10:11] == "T" for line in phalanx_logs("--timestamps").splitlines())
    assert len(phalanx_logs("--tail", "1").splitlines()) == 1
    for arguments in (("other",), ("-f",)):
        with pytest.raises(type(gone)):
            phalanx_logs(*arguments)


def test_what_run_has_shown_is_kept_privately(two_nodes, code, phalanx_logs, tmp_path):
    job = submit(two_nodes, JobSpec(("echo", "out"), "exec", processes=1, directory=code))
    assert follow(job, cluster=two_nodes.name) == 0
    line = next(event for event in job.follow() if isinstance(event, OutputLine))
    (kept,) = Path(tmp_path / "state/logs" / two_nodes.name).iterdir()
    assert (kept.name, kept.read_text(), kept.stat().st_mode & 0o777) == (
        f"{job.id}.log",
        f"{line.time_s:.3f} stdout [0] out\n",
        0o600,
    )


def test_the_output_of_a_job_that_was_pruned_is_shown_if_it_is_here(two_nodes, code, phalanx_logs):
    _, status = run(two_nodes, code, "echo", "out", processes=1)
    phalanx_logs()
    assert ended_jobs(two_nodes, time.time() + 60, remove=True)
    assert phalanx_logs(status.id) == "[0] out\n"
    with raises_code("job-removed"):
        phalanx_logs("-f", status.id)


def test_another_failure_of_the_cluster_is_reported(two_nodes, code, phalanx_logs):
    run(two_nodes, code, "echo", "out", processes=1)
    phalanx_logs()
    phalanx_logs.error = ClusterError("no answer")
    with pytest.raises(ClusterError, match="no answer"):
        phalanx_logs()


def lines(count: int, text: bytes = b"x") -> list[OutputLine]:
    return [OutputLine("0", "head", "stdout", 0.0, text + str(number).encode()) for number in range(count)]


def test_a_shorter_output_replaces_no_longer_one_and_a_part_counts(phalanx_logs):
    for count in (3, 2):
        assert len(list(kept_output.keeping(iter(lines(count)), "demo", "261127-000000-000000"))) == count
    events = kept_output.keeping(iter(lines(9)), "demo", "261127-000000-000000")
    for _ in range(4):
        next(events)
    events.close()
    kept = kept_output.find("demo", None)
    assert kept and len(kept.read_bytes().splitlines()) == 4


def test_of_a_long_output_the_end_is_kept_and_of_many_jobs_the_newest(phalanx_logs, monkeypatch):
    monkeypatch.setattr(kept_output, "_MOST_BYTES", 1000)
    monkeypatch.setattr(kept_output, "_MOST_JOBS", 2)
    for number in range(3):
        list(kept_output.keeping(iter(lines(1000)), "demo", f"261127-000000-00000{number}"))
    kept = kept_output.find("demo", None)
    assert kept and len(list(kept.parent.iterdir())) == 2
    assert kept.read_bytes().endswith(b" stdout [0] x999\n") and 900 < kept.stat().st_size < 2100


def test_an_array_and_its_tasks_are_kept_beside_each_other(phalanx_logs):
    array = "261101-120000-abcdef"
    outputs = {array: 3, f"{array}.1": 1, f"{array}.10": 2}
    for job, count in outputs.items():
        list(kept_output.keeping(iter(lines(count)), "two", job))
    for reference in (*outputs, array[-6:], f"{array[-6:]}.1"):
        kept = kept_output.find("two", reference)
        whole = next(job for job in outputs if job.endswith(reference))
        assert kept and len(kept_output.lines_of(kept, None, None, None)) == outputs[whole]


def test_no_room_to_keep_it_disturbs_nothing(phalanx_logs, tmp_path):
    (tmp_path / "state").write_text("no directory")
    assert len(list(kept_output.keeping(iter(lines(3)), "demo", "261127-000000-000000"))) == 3
