"""Submissions that are interrupted or meet errors: they leave no job or a complete one, never a partial one."""

from __future__ import annotations

import io
import os
import resource
import shutil
import subprocess
import tarfile
import time

import pytest
from fake_jobs import outcome, run
from fake_nodes import kill_chosen

import phalanx.jobs.job
from phalanx.code import commit
from phalanx.code.commit import Commit
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


def git(directory, *words):
    own = ("-c", "user.name=x", "-c", "user.email=x@x", "-c", "init.defaultBranch=main")
    return subprocess.run(["git", *own, *words], cwd=directory, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repository(code):
    """A repository with one commit, whose id it returns."""
    (code / "train.py").write_text("print(1)")
    (code / ".gitignore").write_text("data\n")
    git(code, "init")
    git(code, "add", ".")
    git(code, "commit", "-m", "first")
    return git(code, "rev-parse", "HEAD").strip()


def test_a_job_knows_its_commit_and_whether_the_code_has_changes(two_nodes, code, repository):
    def ran(directory=code, **options):
        lines, status = run(two_nodes, directory, "sh", "-c", 'echo "$PHALANX_COMMIT"', processes=1, **options)
        assert lines == [f"0: {status.commit}"]
        return status

    (code / "data").write_text("ignored")
    assert ran().commit == repository
    (code / "train.py").write_text("print(2)")
    first = ran(checkpoint="kept")
    assert first.commit == f"{repository}-dirty" and list_jobs(two_nodes)[0].commit == first.commit
    git(code, "commit", "-am", "second")
    (code / "new.py").write_text("")
    assert ran().commit == f"{git(code, 'rev-parse', 'HEAD').strip()}-dirty"
    (code / "sub").mkdir()
    (code / "sub/x.py").write_text("")
    git(code, "add", ".")
    git(code, "commit", "-m", "third")
    (code / "train.py").write_text("print(3)")
    third = git(code, "rev-parse", "HEAD").strip()
    assert ran(code / "sub").commit == third, "only what is sent counts"
    job = submit(two_nodes, JobSpec((), resume=first.id, directory=code / "sub"))
    assert outcome(job.follow())[0] == [f"0: {third}"]
    (two_nodes.root / "elsewhere").mkdir()
    assert ran(two_nodes.root / "elsewhere").commit == ""
    job = submit(two_nodes, JobSpec((), resume=first.id, directory=two_nodes.root / "elsewhere"))
    assert outcome(job.follow())[0] == ["0: "]


@pytest.mark.parametrize(
    "settings",
    [
        "[core]\nfsmonitor = {}\n",
        "[core]\nhooksPath = {directory}\n",
        '[filter "x"]\nclean = {}\n',
        '[filter "x"]\nprocess = {}\n',
        '[filter "x\x0bx"]\nclean = {}\n',
        "[include]\npath = {directory}/included\n",
    ],
)
def test_a_repository_of_a_stranger_starts_no_program_here(code, repository, tmp_path, settings):
    program, ran = tmp_path / "program", tmp_path / "ran"
    program.write_text(f"#!/bin/sh\ntouch {ran}\ncat\n")
    program.chmod(0o755)
    (tmp_path / "post-index-change").symlink_to(program)
    (tmp_path / "included").write_text(f'[filter "x"]\nclean = {program}\n')
    (code / ".gitattributes").write_text("* filter=x\x0bx\n" if "\x0b" in settings else "* filter=x\n")
    with (code / ".git/config").open("a") as file:
        file.write(settings.format(program, directory=tmp_path))
    (code / "train.py").write_text("changed")
    assert Commit(code).text() in ("", f"{repository}-dirty")
    assert not ran.exists()
    git(code, "status")
    git(code, "add", ".")
    assert ran.exists(), "git itself starts it"


@pytest.mark.parametrize("answer", ["exit 129", "exec sleep 600"], ids=["older than 2.26", "silent"])
def test_where_git_does_not_list_its_settings_it_starts_nothing(code, repository, tmp_path, monkeypatch, answer):
    ran, fake = tmp_path / "ran", tmp_path / "bin/git"
    fake.parent.mkdir()
    fake.write_text(f'#!/bin/sh\ncase "$*" in *--show-scope*) {answer};; esac\nexec {shutil.which("git")} "$@"\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(fake.parent), prepend=os.pathsep)
    monkeypatch.setattr(commit, "_WITHIN_S", 0.5)
    (code / ".gitattributes").write_text("* filter=x\n")
    git(code, "config", "filter.x.clean", f"touch {ran}; cat")
    (code / "train.py").write_text("changed")
    assert Commit(code).text() == ""
    assert not ran.exists()
