"""Submissions that are interrupted or meet errors: they leave no job or a complete one, never a partial one."""

from __future__ import annotations

import io
import resource
import subprocess
import tarfile
import time

import pytest
from fake_jobs import outcome, run
from fake_nodes import kill_chosen

import phalanx.jobs.job
from phalanx.errors import JobError
from phalanx.jobs.head_command import HeadCommand
from phalanx.jobs.job import (
    JOBS,
    JobSpec,
    list_jobs,
    open_job,
    submit,
)
from phalanx.runner.checked import VERB_AT
from phalanx.runner.names import LAST_SENT


def test_ctrl_c_while_the_head_takes_a_job_leaves_none_running(two_nodes, code, monkeypatch):
    begins_within, asked = HeadCommand.begins_within, []

    def interrupted_at_first(self, timeout_s):
        asked.append(timeout_s)
        if len(asked) == 1:
            raise KeyboardInterrupt
        return begins_within(self, timeout_s)

    monkeypatch.setattr(HeadCommand, "begins_within", interrupted_at_first)
    with pytest.raises(KeyboardInterrupt):
        submit(two_nodes, JobSpec(("sleep", "60"), "exec", directory=code))
    assert [job.state.value for job in list_jobs(two_nodes)] == ["stopped"]


def test_what_a_submission_leaves_that_broke_off_with_its_head_is_removed_by_the_next_list(
    two_nodes, code, monkeypatch
):
    jobs, seen = two_nodes.root / "shared" / JOBS, []

    def broken(self, write):
        while not list(jobs.glob("*/runner.pyz")):
            time.sleep(0.01)
        list_jobs(two_nodes)
        seen.extend(jobs.glob("*"))
        kill_chosen(lambda argv, _: argv[VERB_AT : VERB_AT + 2] == ["submit", str(seen[0])])
        self.close()
        raise JobError("its head died")

    monkeypatch.setattr(HeadCommand, "send", broken)
    with pytest.raises(JobError, match="its head died"):
        submit(two_nodes, JobSpec(("true",), "exec", directory=code))
    assert list(jobs.glob("*")) == seen != [], "it stays while more may come"
    assert list_jobs(two_nodes) == []
    assert list(jobs.glob("*")) == []


def test_ctrl_c_while_the_code_is_sent_leaves_no_job(two_nodes, code, monkeypatch):
    send = HeadCommand.send

    def interrupted(self, write):
        def half(out):
            write(whole := io.BytesIO())
            out.write(whole.getvalue()[:700])
            raise KeyboardInterrupt

        send(self, half)

    monkeypatch.setattr(HeadCommand, "send", interrupted)
    with pytest.raises(KeyboardInterrupt):
        submit(two_nodes, JobSpec(("sleep", "60"), "exec", directory=code))
    assert list((two_nodes.root / "shared").glob(f"{JOBS}/*")) == []


def test_a_job_never_takes_the_directory_of_another(two_nodes, code, monkeypatch):
    monkeypatch.setattr(phalanx.jobs.job, "_new_id", lambda: "same")
    run(two_nodes, code, "echo", "first", processes=1)
    with pytest.raises(JobError, match="belongs to another job"):
        submit(two_nodes, JobSpec(("echo", "second"), "exec", directory=code))
    assert outcome(open_job(two_nodes, "same").follow())[0] == ["0: first"]


def test_the_heads_ranks_may_open_as_many_files_at_the_first_attempt_as_later(two_nodes, code):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard // 2, hard))
    try:
        lines, _ = run(two_nodes, code, "sh", "-c", "ulimit -Sn", processes=1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert lines == [f"0: {hard}"]


def test_ctrl_c_after_all_the_code_was_sent_stops_the_job(two_nodes, code, monkeypatch):
    send = HeadCommand.send

    def interrupted(self, write):
        def whole(out):
            write(out)
            raise KeyboardInterrupt

        send(self, whole)

    monkeypatch.setattr(HeadCommand, "send", interrupted)
    for detach in (False, True):
        with pytest.raises(KeyboardInterrupt):
            submit(two_nodes, JobSpec(("sleep", "60"), "exec", directory=code), detach=detach)
    assert [job.state.value for job in list_jobs(two_nodes)] == ["stopped"] * 2


def test_a_submission_that_breaks_off_between_two_files_starts_nothing_and_leaves_nothing(two_nodes, code, monkeypatch):
    (code / "a").write_text("one")
    (code / "b").write_text("two")
    sent: list[bytes] = []

    class CutError(Exception):
        """Nothing goes over here."""

    def keep(self, write):
        write(out := io.BytesIO())
        sent.append(out.getvalue())
        self.close()
        raise CutError

    commands: list[str] = []
    records: list[bytes] = []
    begin, offer = HeadCommand.__init__, HeadCommand.offer

    def begin_and_report(self, remote, command, stdin):
        commands.append(command)
        begin(self, remote, command, stdin)

    def offer_and_report(self, data):
        records.append(data)
        offer(self, data)

    monkeypatch.setattr(HeadCommand, "send", keep)
    monkeypatch.setattr(HeadCommand, "__init__", begin_and_report)
    monkeypatch.setattr(HeadCommand, "offer", offer_and_report)
    with pytest.raises(CutError):
        submit(two_nodes, JobSpec(("true",), "exec", directory=code, secrets={"TOKEN": "secret"}))
    assert list_jobs(two_nodes) == []  # it removes what the killed process has left
    record = records[-1]
    whole = record + sent[0]
    first = len(record) + sent[0].index(b"\n") + 1
    with tarfile.open(fileobj=io.BytesIO(whole[first:])) as archive:
        members = archive.getmembers()
    assert members[-1].name == LAST_SENT
    ends = (0, 3, len(record) - 3, len(record), *(first + member.offset for member in members), len(whole) - 3)
    for end in ends:
        done = subprocess.run(["sh", "-c", commands[-1]], input=whole[:end], env=two_nodes.env, capture_output=True)
        assert done.returncode == 1
        assert list((two_nodes.root / "shared").glob(f"{JOBS}/*")) == []
