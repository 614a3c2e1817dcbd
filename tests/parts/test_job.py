"""Jobs from submit to their proven end, on nodes that are this machine (see fake_nodes)."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import tarfile
import time
from pathlib import Path

import pytest
from fake_nodes import FakeCluster, kill_chosen, kill_marked, kill_starter, marked

from phalanx.errors import JobError
from phalanx.head_command import HeadCommand
from phalanx.job import (
    JOBS,
    Job,
    JobSpec,
    JobState,
    JobStatus,
    OutputLine,
    list_jobs,
    open_job,
    processes,
    submit,
)
from phalanx.launchers import load


@pytest.fixture
def code(tmp_path: Path) -> Path:
    (tmp_path / "code").mkdir()
    return tmp_path / "code"


@pytest.fixture
def cluster(tmp_path: Path):
    """Two nodes; in the end no job of the test may have left anything."""
    cluster = FakeCluster(tmp_path)
    yield cluster
    for directory in (tmp_path / "shared").glob(f"{JOBS}/*"):
        if marked(directory.name):
            Job(cluster, directory.name).stop()
        assert marked(directory.name) == []


def run(cluster, code: Path, *command: str, launcher: str = "exec", **options):
    """(lines as "process: text", final status)"""
    job = submit(cluster, JobSpec(command, launcher, directory=code, **options))
    return outcome(job.follow())


def outcome(events) -> tuple[list[str], JobStatus]:
    lines, status = [], None
    for event in events:
        if isinstance(event, OutputLine):
            lines.append(f"{event.process}: {event.data.decode()}")
        else:
            status = event
    assert status is not None
    return lines, status


def wait_for_line(events, text: str) -> None:
    """Follow until a line with this text comes."""
    for event in events:
        if isinstance(event, OutputLine) and text in event.data.decode():
            return
    raise AssertionError(f"{text!r} never came")


def wait_for_message(events, text: str) -> None:
    """Follow until the job's message begins so."""
    for event in events:
        if isinstance(event, JobStatus) and event.message.startswith(text):
            return
    raise AssertionError(f"{text!r} never came")


def test_every_rank_runs_in_the_copy_with_its_variables(cluster, code):
    (code / "data.txt").write_text("from here\n")
    script = "cat data.txt; echo $RANK of $WORLD_SIZE at $MASTER_ADDR, $GREETING, $PHALANX_JOB"
    lines, status = run(cluster, code, "sh", "-c", script, env={"GREETING": 'it\'s "me"'})
    assert sorted(lines) == [
        '0: 0 of 2 at deeplearning-worker1, it\'s "me", ' + status.id,
        "0: from here",
        '1: 1 of 2 at deeplearning-worker1, it\'s "me", ' + status.id,
        "1: from here",
    ]
    assert (status.state, status.exit_code, status.processes) == (JobState.SUCCEEDED, 0, 2)
    assert status.verified
    assert status.killed == 0
    assert [verdict.node for verdict in status.nodes] == ["deeplearning-worker1", "deeplearning-worker2"]


def test_the_first_failure_ends_the_job_and_is_shown(cluster, code):
    script = 'if [ $RANK = 1 ]; then seq 30; exit 3; fi; trap "exit 9" TERM; sleep 60 & wait'
    _, status = run(cluster, code, "sh", "-c", script)
    assert (status.state, status.exit_code) == (JobState.FAILED, 3)
    assert status.message == "rank 1 on deeplearning-worker2 ended with exit code 3"
    assert status.tail == tuple(str(number) for number in range(11, 31))
    assert status.verified


def test_a_job_that_removes_its_own_directory_is_lost_and_says_so(cluster, code):
    with pytest.raises(JobError, match=r"its directory .* was removed"):
        run(cluster, code, "sh", "-c", 'rm -rf "$(dirname "$PWD")"; echo gone')


@pytest.mark.parametrize("launcher", ["exec", "mpi"])
def test_words_and_the_working_directory_reach_every_rank_as_they_are(cluster, code, launcher):
    (code / "words.py").write_text(
        "import json, os, sys\nprint(json.dumps([sys.argv[1:], os.environ['PWD'] == os.getcwd()]))\n"
    )
    words = [":", "a b", "", "=", "--x", 'it\'s "q"', "ü", "{}"]
    lines, status = run(cluster, code, "python3", "words.py", *words, launcher=launcher, per_node=1)
    assert [json.loads(line.partition(": ")[2]) for line in lines] == [[words, True]] * 2
    assert status.exit_code == 0


def test_a_signal_is_named_and_counts_as_in_a_shell(cluster, code):
    _, status = run(cluster, code, "sh", "-c", "[ $RANK = 0 ] && sleep 60; kill -SEGV $$")
    assert status.message == "rank 1 on deeplearning-worker2 was ended by SIGSEGV"
    assert status.process_exit_code == 128 + signal.SIGSEGV


@pytest.mark.parametrize("launcher", ["exec", "mpi"])
def test_a_missing_command_is_told_once_before_any_rank_starts(cluster, code, launcher):
    lines, status = run(cluster, code, "nosuch", launcher=launcher)
    assert status.exit_code == 127
    assert status.message.startswith("command 'nosuch' is not on deeplearning-worker1, deeplearning-worker2 (PATH ")
    assert [line for line in lines if line[0].isdigit()] == []
    assert status.started_at is None
    assert status.verified


@pytest.mark.parametrize(("launcher", "processes"), [("exec", None), ("mpi", None), ("mpi", 1)])
@pytest.mark.parametrize("words", [("train.py",), ("-m", "train")])
def test_a_missing_package_is_told_once_before_any_rank_starts(cluster, code, launcher, processes, words):
    (code / "train.py").write_text("import json\nimport nosuch.deep\nprint('began')\n")
    lines, status = run(cluster, code, "python3", *words, launcher=launcher, processes=processes)
    assert status.message.startswith("no module named 'nosuch' on deeplearning-worker1, which train")
    assert (status.exit_code, status.started_at, status.verified) == (1, None, True)
    assert [line for line in lines if line[0].isdigit()] == []


def test_an_engine_that_is_missing_is_told_with_its_recipe(cluster, code):
    (code / "train.py").write_text("import mxnet\n")
    _, status = run(cluster, code, "python3", "train.py", launcher="dmlc")
    assert status.message.startswith("no module named 'mxnet' on deeplearning-worker1")
    assert status.message.endswith("A line in requirements.txt brings it, and so does `--recipe mxnet`")


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"processes": 9}, "9 processes were asked for; 2 nodes have room for 4"),
        ({"per_node": 3}, "3 processes per node were asked for; deeplearning-worker1 has 2 slots"),
        ({"env": {"RANK": "7", "MINE": "1"}}, "RANK can't be set: the launcher exec sets it for each process itself"),
        ({"secrets": {"RANK": "7"}}, "RANK can't be set"),
        ({"launcher": "torchrun", "env": {"LOCAL_RANK": "7"}}, "LOCAL_RANK can't be set: the launcher torchrun sets"),
    ],
)
def test_what_can_not_be_started_is_refused_as_a_dry_run_refuses_it_and_leaves_no_job(cluster, code, asked, words):
    spec = JobSpec(("true",), **{"launcher": "exec", "directory": code, **asked})
    for detach in (False, True):
        with pytest.raises(JobError) as refused:
            submit(cluster, spec, detach=detach)
        assert refused.value.message.startswith(words)
    with pytest.raises(JobError) as planned:
        processes(load(spec.launcher), spec, cluster.roster)
    assert str(planned.value) == str(refused.value)
    assert list_jobs(cluster) == []
    assert list((cluster.root / "shared" / JOBS).iterdir()) == []


def test_a_dry_run_shows_what_would_run(cluster, code):
    planned = processes(load("exec"), JobSpec(("train", "-x"), "exec", directory=code), cluster.roster)
    assert [(process.node[-1], process.argv) for process in planned] == [("1", ("train", "-x")), ("2", ("train", "-x"))]


def test_a_node_that_refuses_is_named_with_what_ssh_said(cluster, code):
    cluster.down("deeplearning-worker2")
    _, status = run(cluster, code, "sleep", "60")
    assert status.state is JobState.FAILED
    assert status.message.startswith("deeplearning-worker2 can't be reached: ssh: connect to host")
    assert [verdict.clean for verdict in status.nodes] == [True, False]
    assert "Connection refused" in status.nodes[1].message


def test_a_node_that_has_just_joined_is_waited_for(cluster, code):
    cluster.change_roster(nodes=2)
    cluster.down("deeplearning-worker2")
    job = submit(cluster, JobSpec(("true",), "exec", directory=code))
    events = job.follow()
    wait_for_message(events, "waiting for deeplearning-worker2: ssh: connect to host deeplearning-worker2 port 22")
    cluster.up("deeplearning-worker2")
    _, status = outcome(events)
    assert (status.state, status.attempt, status.processes) == (JobState.SUCCEEDED, 0, 2)


def test_a_node_that_leaves_before_the_job_begins_costs_no_restart(cluster, code):
    cluster.change_roster(nodes=2)
    cluster.down("deeplearning-worker2")
    job = submit(cluster, JobSpec(("true",), "exec", directory=code))
    events = job.follow()
    wait_for_message(events, "waiting for deeplearning-worker2")
    cluster.change_roster(nodes=1)
    _, status = outcome(events)
    assert (status.state, status.attempt, status.processes) == (JobState.SUCCEEDED, 0, 1)
    assert status.verified


def test_a_login_script_that_prints_spoils_nothing(cluster, code):
    cluster.greet("Welcome to this node!\n")
    lines, status = run(cluster, code, "echo", "hi")
    assert sorted(lines) == ["0: hi", "1: hi"]
    assert status.exit_code == 0


def test_any_bytes_are_kept(cluster, code):
    (code / "out.py").write_text("import os\nos.write(1, bytes(range(256)) * 300)\nos.write(2, b'no newline')\n")
    job = submit(cluster, JobSpec(("python3", "out.py"), "exec", processes=1, directory=code))
    events = list(job.follow())
    kept = Path(job.directory, "output", "rank-0.log").read_bytes()
    assert kept in (bytes(range(256)) * 300 + b"no newline", b"no newline" + bytes(range(256)) * 300)
    assert [event.data for event in events if isinstance(event, OutputLine) and event.stream == "stderr"] == [
        b"no newline"
    ]


def test_a_line_of_100_mb_arrives_whole_and_the_end_is_told(cluster, code):
    script = "head -c 100000000 /dev/zero | tr '\\0' x; exit 3"
    job = submit(cluster, JobSpec(("sh", "-c", script), "exec", processes=1, directory=code))
    received, status = 0, None
    for event in job.follow():
        if isinstance(event, OutputLine):
            received += len(event.data)
        else:
            status = event
    assert status is not None
    assert (received, status.exit_code) == (100_000_000, 3)
    assert "rank 0 on deeplearning-worker1 ended with exit code 3" in status.message


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a disk that is soon full")
def test_a_full_disk_ends_the_output_and_not_the_telling(tmp_path, code):
    tight = FakeCluster(tmp_path)
    disk = ["mount", "-t", "tmpfs", "-o", "size=4m,mode=755", "tmpfs", tight.shared]
    if subprocess.run(disk, capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        kept = "until [ -s ../output/index ]; do sleep 0.05; done"
        script = f"echo began; {kept}; cat /dev/zero > {tight.shared}/all; seq 100000; sleep 1; exit 5"
        lines, status = run(tight, code, "sh", "-c", script, processes=1)
        assert lines[0] == "0: began"
        assert (status.state, status.exit_code) == (JobState.FAILED, 5)
        assert "No space left on device" in status.message
        assert status.verified
        assert list_jobs(tight)[0].exit_code == 5
    finally:
        subprocess.run(["umount", "-l", tight.shared], check=True)


def test_what_leaves_its_parent_session_and_environment_is_found_and_ended(cluster, code):
    (code / "escape.sh").write_text("(setsid env -i sh -c 'sleep 300 & exec sleep 300' &) ; exit 0\n")
    _, status = run(cluster, code, "sh", "escape.sh", processes=1)
    assert status.state is JobState.SUCCEEDED
    assert status.verified
    assert status.killed >= 1
    assert "sleep" in status.nodes[0].message


def test_stop_ends_it_everywhere_and_leaves_others_alone(cluster, code):
    other = submit(cluster, JobSpec(("sleep", "300"), "exec", directory=code), detach=True)
    job = submit(cluster, JobSpec(("sh", "-c", "echo on; sleep 300"), "exec", directory=code))
    wait_for_line(job.follow(), "on")
    status = job.stop()
    assert (status.state, status.exit_code, status.process_exit_code) == (JobState.STOPPED, None, 130)
    assert status.verified
    assert marked(job.id) == []
    assert len(marked(other.id)) == 2
    assert job.stop() == status
    assert other.status().state is JobState.RUNNING


def test_a_runner_that_is_killed_takes_the_job_with_it(cluster, code):
    job = submit(cluster, JobSpec(("sh", "-c", "echo on; exec sleep 300"), "exec", directory=code))
    events = job.follow()
    wait_for_line(events, "on")
    os.kill(runner_pid(job), signal.SIGKILL)
    _, status = outcome(events)
    assert status.state is JobState.LOST
    assert status.verified
    assert marked(job.id) == []
    assert job.status().state is JobState.LOST


def test_a_node_that_is_lost_ends_the_job_and_is_asked_again(cluster, code):
    job = submit(cluster, JobSpec(("sh", "-c", "echo on; exec env -u NOTHING sleep 300"), "exec", directory=code))
    events = job.follow()
    wait_for_line(events, "on")
    kill_starter(job, "deeplearning-worker2")
    _, status = outcome(events)
    assert status.message.startswith("deeplearning-worker2 was lost")
    assert status.verified
    assert marked(job.id) == []


@pytest.mark.parametrize("hosts", [(), ("deeplearning-worker2",)], ids=["on all nodes", "not on the head"])
def test_a_lost_job_is_settled_with_nobody_looking(cluster, code, hosts):
    job = submit(cluster, JobSpec(("sh", "-c", "echo on; exec sleep 300"), "exec", directory=code, hosts=hosts))
    wait_for_line(job.follow(), "on")
    os.kill(runner_pid(job), signal.SIGKILL)
    state = Path(job.directory, "state.json")
    deadline = time.monotonic() + 10
    while '"lost"' not in state.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert marked(job.id) == []
    assert outcome(job.follow(wait=False))[1].message.startswith("the job's runner died")


def test_a_job_that_fails_starts_again_and_keeps_what_each_attempt_wrote(cluster, code):
    script = "echo try $PHALANX_RESTART; [ $PHALANX_RESTART = 2 ] || exit 4$PHALANX_RESTART"
    job = submit(cluster, JobSpec(("sh", "-c", script), "exec", processes=1, directory=code, restarts=3))
    events = list(job.follow())
    assert [event.data.decode() for event in events if isinstance(event, OutputLine)] == ["try 0", "try 1", "try 2"]
    seen = [(event.state.value, event.attempt) for event in events if isinstance(event, JobStatus)]
    assert [one for n, one in enumerate(seen) if one not in seen[:n]][-3:] == [
        ("pending", 2),
        ("running", 2),
        ("succeeded", 2),
    ]
    assert outcome(job.follow(attempt=1))[0] == ["0: try 1"]
    assert outcome(job.follow(attempt=-1, wait=False))[0] == ["0: try 2"]
    assert sorted(path.name for path in Path(job.directory, "output").glob("rank-0*")) == [
        "rank-0.log",
        "rank-0.restart-1.log",
        "rank-0.restart-2.log",
    ]


def test_a_job_that_fails_the_same_way_at_once_is_not_tried_again(cluster, code):
    lines, status = run(cluster, code, "sh", "-c", "echo once more; exit 3", processes=1, restarts=5)
    assert lines == ["0: once more", "0: once more"]
    assert status.exit_code == 3
    assert status.message.endswith("(twice the same within 5 s of its start, so it is not tried again (1 of 5))")


def test_a_job_whose_runner_was_killed_starts_again(cluster, code):
    job = submit(
        cluster,
        JobSpec(
            ("sh", "-c", "echo on $PHALANX_RESTART; sleep $((300 - 300 * PHALANX_RESTART))"),
            "exec",
            directory=code,
            restarts=1,
        ),
    )
    events = job.follow()
    wait_for_line(events, "on 0")
    os.kill(runner_pid(job), signal.SIGKILL)
    lines, status = outcome(events)
    assert status.state is JobState.SUCCEEDED
    assert status.attempt == 1
    assert [line for line in lines if "on 1" in line]


def test_a_restart_leaves_out_the_node_that_is_gone_when_the_roster_is_new(cluster, code):
    job = submit(
        cluster,
        JobSpec(
            ("sh", "-c", "echo on $WORLD_SIZE; sleep $((300 * (WORLD_SIZE - 1)))"), "exec", directory=code, restarts=1
        ),
    )
    events = job.follow()
    wait_for_line(events, "on 2")
    cluster.down("deeplearning-worker2")
    kill_starter(job, "deeplearning-worker2")
    cluster.change_roster(nodes=1)
    lines, status = outcome(events)
    assert status.state is JobState.SUCCEEDED
    assert "0: on 1" in lines
    assert [(verdict.node, verdict.clean) for verdict in status.nodes] == [
        ("deeplearning-worker1", True),
        ("deeplearning-worker2", False),
    ]
    kill_marked(job.id)  # nothing reaches them on a node that is gone; here they are this machine's


def test_leaving_changes_nothing_and_coming_back_shows_all(cluster, code):
    job = submit(
        cluster,
        JobSpec(("sh", "-c", "echo $RANK; sleep 0.2; echo bye"), "exec", directory=code, name="mine"),
        detach=True,
    )
    assert job.wait(timeout_s=10).exit_code == 0
    again = open_job(cluster, "mine")
    lines, status = outcome(again.follow(wait=False))
    assert sorted(lines) == ["0: 0", "0: bye", "1: 1", "1: bye"]
    assert status == job.status() == list_jobs(cluster)[0]
    assert outcome(again.follow(process="1"))[0] == ["1: 1", "1: bye"]


def test_a_broken_connection_is_made_again_from_where_it_broke(cluster, code, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda _: None)
    (code / "count.sh").write_text("for i in 1 2 3 4 5 6 7 8; do echo line $i; sleep 0.05; done\n")
    job = submit(cluster, JobSpec(("sh", "count.sh"), "exec", directory=code))
    lines = []
    for event in job.follow():
        if isinstance(event, OutputLine):
            lines.append(f"{event.process}: {event.data.decode()}")
        if lines and lines[-1] == "0: line 3":
            kill_followers(job)
    expected = [f"line {number}" for number in range(1, 9)]
    for rank in ("0", "1"):
        assert [line[3:] for line in lines if line[0] == rank] == expected


def test_jobs_are_found_by_what_people_remember(cluster, code):
    assert list_jobs(cluster) == []
    with pytest.raises(JobError, match="has no jobs"):
        open_job(cluster)
    first = run(cluster, code, "true", processes=1, name="train")[1]
    second = run(cluster, code, "true", processes=1)[1]
    found = {reference: open_job(cluster, reference).id for reference in ("train", first.id, second.id[-4:], None)}
    assert found == {"train": first.id, first.id: first.id, second.id[-4:]: second.id, None: list_jobs(cluster)[0].id}
    with pytest.raises(JobError, match="is the id of 2 jobs"):
        open_job(cluster, first.id[:4])
    with pytest.raises(JobError, match="no job 'nothing'"):
        open_job(cluster, "nothing")
    with pytest.raises(JobError, match="name is empty"):
        open_job(cluster, "")


def test_ctrl_c_while_the_head_takes_a_job_leaves_none_running(cluster, code, monkeypatch):
    begins_within, asked = HeadCommand.begins_within, []

    def interrupted_at_first(self, timeout_s):
        asked.append(timeout_s)
        if len(asked) == 1:
            raise KeyboardInterrupt
        return begins_within(self, timeout_s)

    monkeypatch.setattr(HeadCommand, "begins_within", interrupted_at_first)
    with pytest.raises(KeyboardInterrupt):
        submit(cluster, JobSpec(("sleep", "60"), "exec", directory=code))
    assert [job.state.value for job in list_jobs(cluster)] == ["stopped"]


def test_ctrl_c_while_the_code_goes_over_leaves_no_job(cluster, code, monkeypatch):
    send = HeadCommand.send

    def interrupted(self, write):
        def half(out):
            write(io.BytesIO())
            out.write(b"half of the first header")
            raise KeyboardInterrupt

        send(self, half)

    monkeypatch.setattr(HeadCommand, "send", interrupted)
    with pytest.raises(KeyboardInterrupt):
        submit(cluster, JobSpec(("sleep", "60"), "exec", directory=code))
    assert list((cluster.root / "shared" / JOBS).iterdir()) == []


def test_ctrl_c_when_all_the_code_has_gone_over_stops_the_job(cluster, code, monkeypatch):
    send = HeadCommand.send

    def interrupted(self, write):
        def whole(out):
            write(out)
            raise KeyboardInterrupt

        send(self, whole)

    monkeypatch.setattr(HeadCommand, "send", interrupted)
    for detach in (False, True):
        with pytest.raises(KeyboardInterrupt):
            submit(cluster, JobSpec(("sleep", "60"), "exec", directory=code), detach=detach)
    assert [job.state.value for job in list_jobs(cluster)] == ["stopped"] * 2


def test_a_submission_that_breaks_off_between_two_files_starts_nothing_and_leaves_nothing(cluster, code, monkeypatch):
    (code / "a").write_text("one")
    (code / "b").write_text("two")
    sent: list[bytes] = []

    class CutError(Exception):
        """Nothing goes over here."""

    def keep(_self, write):
        write(out := io.BytesIO())
        sent.append(out.getvalue())
        raise CutError

    commands: list[str] = []
    monkeypatch.setattr(HeadCommand, "send", keep)
    monkeypatch.setattr(HeadCommand, "__init__", lambda _self, _remote, command, stdin: commands.append(command))
    with pytest.raises(CutError):
        submit(cluster, JobSpec(("true",), "exec", directory=code, secrets={"TOKEN": "secret"}))
    with tarfile.open(fileobj=io.BytesIO(sent[0])) as archive:
        *begins, last = archive.getmembers()
    assert last.name == "job.json"
    for end in (*(member.offset for member in (*begins, last)), len(sent[0]) - 3):
        done = subprocess.run(["sh", "-c", commands[0]], input=sent[0][:end], env=cluster.env, capture_output=True)
        assert done.returncode == 1
        assert list((cluster.root / "shared" / JOBS).iterdir()) == []


def test_a_head_that_does_not_take_the_job_is_told(cluster, code):
    (cluster.root / "roster.json").unlink()
    with pytest.raises(JobError, match=r"there is no .*roster\.json: this is not the head"):
        submit(cluster, JobSpec(("true",), "exec", directory=code))
    (cluster.root / "shared").rename(cluster.root / "away")
    (cluster.root / "shared").touch()
    with pytest.raises(JobError, match=r"the code did not go over|did not take"):
        submit(cluster, JobSpec(("true",), "exec", directory=code))
    (cluster.root / "shared").unlink()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"command": ()}, "no command"),
        ({"processes": 0}, "-n is 0"),
        ({"per_node": -1}, "-N is -1"),
        ({"name": "a b"}, "'a b'"),
    ],
)
def test_a_spec_that_makes_no_sense_is_refused(changes, words):
    with pytest.raises(JobError, match=words):
        JobSpec(**{"command": ("true",), **changes})


def runner_pid(job: Job) -> int:
    import json

    return json.loads(Path(job.directory, "state.json").read_text())["runner"]["pid"]


def kill_followers(job: Job) -> None:
    """The connection breaks: what was on its way is lost."""
    kill_chosen(
        lambda words, env: words[3:5] in (["follow", job.directory], ["submit", job.directory]) and "MASTER" not in env,
        besides=runner_pid(job),
    )
