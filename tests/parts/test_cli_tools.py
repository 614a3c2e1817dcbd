"""get, put, forward, ls and completion, by their command lines."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import time
from datetime import datetime
from pathlib import Path

import pytest
from fake_cloud import FakeAws
from fake_nodes import FakeCluster, change_runner

from phalanx import cli, connection
from phalanx.aws.model import StackState
from phalanx.cli import logs
from phalanx.cli.carrying import Meter, size
from phalanx.cluster.cluster_record import Cluster
from phalanx.code import code_tree
from phalanx.jobs.ended_jobs import ended_jobs
from phalanx.jobs.job import Job, JobSpec, JobState, JobStatus, submit
from phalanx.jobs.transfer import Copied, Moved


@pytest.fixture
def phalanx(tmp_path, monkeypatch, capsys):
    """Run a command line in a directory with a cluster `demo`; return (status, out, err)."""
    monkeypatch.setenv("PHALANX_STATE_DIR", str(tmp_path / "state"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    def type_line(*arguments):
        status = cli.execute(list(arguments))
        return status, *capsys.readouterr()

    return type_line


@pytest.fixture
def cluster(tmp_path, monkeypatch, phalanx):
    fake = FakeCluster(tmp_path)
    Cluster("demo", "aws", "us-east-1", "arn", "54.0.0.1", fake.shared, nodes=4).save()
    monkeypatch.setattr(Cluster, "remote", lambda *_: fake.remote())
    return fake


@pytest.fixture
def job(cluster, tmp_path) -> Job:
    (tmp_path / "code").mkdir()
    job = submit(cluster, JobSpec(("sh", "-c", "echo 1 > loss"), "exec", 1, directory=tmp_path / "code", name="first"))
    job.wait(120)
    return job


def test_results_come_home_by_job_or_from_the_newest(phalanx, job, tmp_path):
    home = tmp_path / "here"
    assert phalanx("get", "loss")[:2] == (0, f"{home}/loss\n")
    assert phalanx("get", "first", "loss", "new/")[0] == 0
    assert (home / "new/loss").read_text() == "1\n"
    assert phalanx("get", f"{job.directory}/work/loss", "again")[0] == 0
    assert (home / "again").read_text() == "1\n"


@pytest.mark.parametrize("destination", ["new/", "named", "{home}/absolute", "{home}/new/"])
def test_of_two_words_the_first_is_a_path_when_no_job_has_that_name(phalanx, job, tmp_path, destination):
    home = tmp_path / "here"
    destination = destination.format(home=home)
    place = destination + "loss" * destination.endswith("/")
    assert phalanx("get", "loss", destination)[:2] == (0, f"{home / place}\n")
    assert (home / place).read_text() == "1\n"


def test_logs_of_a_process_that_there_is_not_names_those_that_there_are(phalanx, job):
    status, out, err = phalanx("logs", "--rank", "99")
    assert (status, out) == (2, "")
    assert "'99'" in err and "It has 0." in err
    assert phalanx("logs", "--rank", "0")[0] == 0


def test_the_last_lines_of_the_output(phalanx, cluster, tmp_path):
    (tmp_path / "code").mkdir()
    script = "for line in 1 2 3 4; do echo $RANK $line; done; printf last"
    job = submit(cluster, JobSpec(("sh", "-c", script), "exec", 1, directory=tmp_path / "code"))
    job.wait(120)
    assert phalanx("logs", "--tail", "2")[:2] == (0, "[0] 0 4\n[0] last\n")
    assert phalanx("logs", "-f", "--tail", "0")[:2] == (0, "")
    assert phalanx("logs", "--tail", "9", "--rank", "0")[1].count("\n") == 5
    assert phalanx("logs", "--tail", "1", "--attempt", "0")[1] == "[0] last\n"


WRITES = r"""
import os, sys, time
for stream, text in ((1, "one\n"), (2, "Traceback\n"), (1, "\r10%\r20%\n"), (1, "dos\r\n"), (2, "end")):
    os.write(stream, text.encode())
    time.sleep(0.1)
"""


@pytest.fixture
def written(cluster, tmp_path) -> Job:
    """A job that has written to both streams, with a progress bar, a line of Windows, and a line without end."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code/writes.py").write_text(WRITES)
    job = submit(cluster, JobSpec(("python3", "writes.py"), "exec", 1, directory=tmp_path / "code"))
    job.wait(120)
    return job


def test_logs_are_in_order_on_standard_output_with_the_last_state_of_a_bar(phalanx, written):
    assert phalanx("logs")[:2] == (0, "[0] one\n[0] Traceback\n[0] 20%\n[0] dos\r\n[0] end\n")
    assert phalanx("logs", "-f")[1] == phalanx("logs")[1]
    assert phalanx("logs", "--stderr")[:2] == (0, "[0] Traceback\n[0] end\n")
    assert phalanx("logs", "--stderr", "--tail", "2")[1] == "[0] Traceback\n[0] end\n"


def test_raw_logs_are_what_was_written_byte_for_byte(phalanx, written):
    assert phalanx("logs", "--raw")[:2] == (0, "one\nTraceback\n\r10%\r20%\ndos\r\nend")
    assert phalanx("logs", "--raw", "--stderr")[1] == "Traceback\nend"
    assert phalanx("logs", "--raw", "--timestamps")[0] == 2


def test_logs_have_times_that_can_be_sorted(phalanx, written):
    before = written.status().submitted_at
    lines = phalanx("logs", "--timestamps")[1].splitlines()
    times = [datetime.fromisoformat(line.split(" ", 1)[0].replace("Z", "+00:00")).timestamp() for line in lines]
    assert times == sorted(times) and before - 1 < times[0] < times[-1] < before + 120
    assert [line.split(" ", 1)[1] for line in lines][:2] == ["[0] one", "[0] Traceback"]


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        (set(), "None of its processes has started."),
        ({"0", "1"}, "It has 0 and 1."),
        ({*map(str, range(12)), "mpiexec"}, "It has 0 to 11, mpiexec."),
    ],
)
def test_processes_are_listed_in_short_form(labels, text):
    assert logs._listed(labels) == text


def test_what_get_can_t_copy_is_reported(phalanx, job):
    status, _, err = phalanx("get", "first", "los")
    assert (status, "contains loss" in err) == (2, True)
    status, _, err = phalanx("get", "frist", "loss")
    assert (status, "work/frist (job " in err, "no job 'frist'" in err) == (2, True, True)
    assert phalanx("get", "first", "loss", "a", "b/")[0] == 2
    assert "is outside of" in phalanx("get", "first", "../../../x")[2]


@pytest.fixture
def runs(phalanx, cluster, tmp_path, monkeypatch):
    """`phalanx run` on the cluster, in a directory with some code and a large data set that .gitignore keeps here."""
    here = tmp_path / "here"
    (here / "data").mkdir()
    (here / "data/x.bin").write_bytes(b"x" * 1_200_000)
    (here / ".gitignore").write_text("data/\n*.log\n")
    (here / "old.log").write_text("old")
    (here / "train.py").write_text("import sys, time; time.sleep(float(sys.argv[1])); print('trained')")
    monkeypatch.setattr(Cluster, "settle_by", lambda *_: None)
    monkeypatch.setattr(Cluster, "require_ready", lambda *_: None)
    return lambda *words: phalanx("run", "--launcher", "exec", *words)


def test_the_first_line_says_what_the_job_is_and_what_is_sent(runs):
    status, out, err = runs("-n", "2", "--", "python3", "train.py", "0")
    assert (status, sorted(out.splitlines())) == (0, ["[0] trained", "[1] trained"])
    first = err.splitlines()[0]
    assert re.fullmatch(
        r"job [0-9a-f-]{20} starts: exec, 2 ranks on \d nodes?; sends 2 files, \d+ bytes; not sent: (.*)", first
    )
    assert "not sent: data/ by .gitignore, 1.1 MiB; old.log by .gitignore, 3 bytes" in first
    assert runs("--detach", "--", "true")[2].startswith("job ")


@pytest.mark.parametrize(("code", "shown"), [("0", ""), ("3", "failed")])
def test_quiet_shows_the_output_and_failures_only(runs, code, shown):
    status, out, err = runs("-q", "-n", "1", "--", "sh", "-c", f"echo out; exit {code}")
    assert (status, out, shown in err) == (int(code), "[0] out\n", True)
    assert bool(err) == bool(shown)


def test_a_silent_phase_is_named_once(runs, monkeypatch):
    monkeypatch.setattr("phalanx.cli.following.SILENT_S", 0.3)
    assert "no output yet" not in runs("-n", "1", "--", "python3", "train.py", "1.5")[2]  # no terminal
    monkeypatch.setattr("phalanx.cli.following._is_watched", lambda: True)
    _, _, err = runs("-n", "1", "--", "python3", "train.py", "1.5")
    assert err.count("running, no output yet") == 1 and "importing" in err
    assert "no output yet" not in runs("-q", "-n", "1", "--", "python3", "train.py", "1")[2]
    assert "no output yet" not in runs("-n", "1", "--", "echo", "1")[2]


@pytest.mark.parametrize(
    ("script", "does"),
    [
        ("import time; time.sleep(2)", "waits"),
        ("while True: pass", "computes"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", "is stopped by a signal"),
    ],
)
def test_a_terminal_shows_what_the_first_rank_does_as_long_as_it_is_silent(
    runs, cluster, tmp_path, monkeypatch, script, does
):
    change_runner(monkeypatch, ("runner/head/attempt_runner.py", "^_SILENT_AFTER_S = 4.0$", "_SILENT_AFTER_S = 0.2"))
    monkeypatch.setattr("phalanx.cli.following._is_watched", lambda: True)
    (tmp_path / "here/train.py").write_text(script)
    # A shell that starts the work only waits for it.
    line = "python3 train.py 2>/dev/null & sleep 1.5; kill -9 $!; wait; echo over"
    _, out, err = runs("-n", "2", "--", "sh", "-c", line)
    assert sorted(out.splitlines()) == ["[0] over", "[1] over"]
    looks = re.findall(r"2 ranks running, no output yet; after \d+ s, rank 0 \(python3\) (.*): so far [\d.]+ s", err)
    assert 1 <= len(looks) <= 3 and looks[-1] == does


def test_sizes_of_what_stays_take_no_long_time(tmp_path, monkeypatch):
    (tmp_path / ".gitignore").write_text("away\n")
    (tmp_path / "away").mkdir()
    monkeypatch.setattr("phalanx.code.code_tree._sizes", lambda _: iter(lambda: time.sleep(0.02) or 1, None))
    (one,) = code_tree.scan(tmp_path).measured(0.1)
    assert (one.name, one.is_whole) == ("away/", False) and one.bytes < 50


def test_a_job_that_was_pruned_is_no_path(phalanx, cluster, job):
    assert ended_jobs(cluster, time.time() + 60, remove=True)
    status, _, err = phalanx("get", job.id, "loss", "here/")
    assert status == 2 and f"{job.id} (succeeded) was removed" in err


def test_the_name_of_a_pruned_job_hides_no_path(phalanx, cluster, job, tmp_path):
    assert ended_jobs(cluster, time.time() + 60, remove=True)
    (tmp_path / "code/first").mkdir()
    (tmp_path / "code/first/loss").write_text("2")
    submit(cluster, JobSpec(("true",), "exec", 1, directory=tmp_path / "code")).wait(120)
    assert phalanx("get", "first", "out/")[0] == 0
    assert (tmp_path / "here/out/first/loss").read_text() == "2"
    status, _, err = phalanx("get", job.id, "loss", "out/")
    assert status == 2 and f"{job.id} (succeeded) was removed" in err and f"work/{job.id}" in err


def test_several_results_and_globs_come_into_a_directory(phalanx, cluster, tmp_path):
    (tmp_path / "code/sub").mkdir(parents=True)
    for name in ("a.pt", "b.pt", "c.txt", "[x].pt", "sub/a.pt", "sub/d.pt"):
        (tmp_path / "code" / name).write_text(name)
    job = submit(cluster, JobSpec(("true",), "exec", 1, directory=tmp_path / "code", name="first"))
    job.wait(120)
    home = tmp_path / "here"

    def got(*arguments: str) -> list[str]:
        assert phalanx("get", *arguments)[0] == 0, arguments
        found = sorted(path.name for path in (home / arguments[-1]).iterdir())
        shutil.rmtree(home / arguments[-1])
        return found

    assert got("a.pt", "c.txt", "one") == ["a.pt", "c.txt"]
    assert got("first", "a.pt", "c.txt", "sub", "two/") == ["a.pt", "c.txt", "sub"]
    assert got("first", "*.pt", "three") == ["[x].pt", "a.pt", "b.pt"]
    assert got("*.pt", f"{job.directory}/work/c.txt", "four") == ["[x].pt", "a.pt", "b.pt", "c.txt"]
    assert got("[x].pt", "c.txt", "five") == ["[x].pt", "c.txt"]
    assert got("**/d.pt", "six/") == ["d.pt"]
    assert phalanx("get", "*.pt", ".")[0] == 0 and (home / "b.pt").read_text() == "b.pt"
    status, _, err = phalanx("get", "a.pt", "sub/a.pt", "seven")
    assert status == 2 and "two" in err and not (home / "seven").exists()
    assert phalanx("get", "*/*.pt", "*.pt", "eight")[0] == 1
    status, _, err = phalanx("get", "*.onnx", ".")
    assert (status, "contains" in err) == (2, True)
    assert phalanx("get", "../../../*", ".")[0] == 2


def test_data_are_copied_and_their_place_is_printed(phalanx, cluster, tmp_path):
    (tmp_path / "here/data").mkdir()
    (tmp_path / "here/data/a").write_text("a")
    (tmp_path / "here/data/out").symlink_to("/etc")
    status, out, err = phalanx("put", "data", "sets/")
    assert (status, out) == (0, f"{cluster.shared}/sets/data\n")
    assert "left out: out" in err
    past = time.time() - 60
    os.utime(tmp_path / "here/data/a", (past, past))
    phalanx("put", "data", "sets/")
    assert "; 1 file unchanged" in phalanx("put", "data", "sets/")[2]


@pytest.fixture
def files(tmp_path):
    """Two files and a directory in the current directory."""
    for name in ("a.py", "b.py"):
        (tmp_path / "here" / name).write_text(name)
    (tmp_path / "here/src").mkdir()


def test_several_sources_go_into_a_directory(phalanx, cluster, files):
    places = f"{cluster.shared}/a.py\n{cluster.shared}/b.py\n"
    assert phalanx("put", "a.py", "b.py", ".")[:2] == (0, places)
    assert phalanx("put", "a.py", "b.py", cluster.shared)[:2] == (0, places)
    assert phalanx("put", "a.py", "src", "new")[0] == 0
    assert Path(cluster.shared, "new/a.py").read_text() == "a.py"
    status, _, err = phalanx("put", "a.py", "b.py", f"{cluster.shared}/a.py")
    assert (status, Path(cluster.shared, "a.py").read_text()) == (1, "a.py"), err


@pytest.mark.parametrize("arguments", ["a.py b.py", "a.py b.py src", "a.py ./b.py"])
def test_a_last_word_that_could_be_a_source_is_refused(phalanx, cluster, files, arguments):
    status, _, err = phalanx("put", *arguments.split())
    assert (status, list(Path(cluster.shared).iterdir())) == (2, [])
    assert f"`phalanx put {arguments} .`" in err
    assert f"`{cluster.shared}/{arguments.split()[-1].removeprefix('./')}`" in err


def test_two_sources_of_one_name_are_refused(phalanx, cluster, files, tmp_path):
    (tmp_path / "here/src/a.py").write_text("another")
    status, _, err = phalanx("put", "a.py", "src/a.py", "sets/")
    assert (status, "named 'a.py'" in err) == (2, True)


def test_progress_is_shown_after_two_seconds_only(capsys, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    meter = Meter()
    meter(Moved(1 << 20, 4 << 20))
    assert capsys.readouterr().err == ""
    now[0] += 2.5
    meter(Moved(2 << 20, 4 << 20))
    assert capsys.readouterr().err == "2.0 MiB of 4.0 MiB, 50 %, 819.2 KiB/s\n"
    meter.end(Copied("/efs/x", 2, 4 << 20, tuple("abcdefg")))
    assert "left out: 2 more of these" in capsys.readouterr().err


@pytest.mark.parametrize(("count", "text"), [(12, "12 bytes"), (3 << 29, "1.5 GiB")])
def test_sizes_are_for_people(count, text):
    assert size(count) == text


@pytest.mark.parametrize("ports", ["x", "0", "70000", "1:2:3", "80:"])
def test_invalid_ports_are_reported(phalanx, cluster, ports):
    status, _, err = phalanx("forward", ports)
    assert (status, "PORT:PORT" in err) == (2, True)


def test_a_port_that_is_taken_is_reported(phalanx, cluster):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        status, _, err = phalanx("forward", str(taken.getsockname()[1]))
    assert (status, "is not available" in err) == (1, True)


def test_ls_shows_the_status_of_every_cluster(phalanx, monkeypatch, tmp_path):
    assert "This machine knows no cluster" in phalanx("ls")[2]
    fake = FakeAws(name="aws")
    stack_id = fake.put("one", "CREATE_COMPLETE")
    monkeypatch.setattr(connection, "connect", lambda name, region: fake)
    Cluster("one", "aws", "us-east-1", stack_id, "54.0.0.1", nodes=2, created_s=1.0).save()
    Cluster("two", "local", "us-east-1", "arn:x").save()
    Cluster("three", "aws", "eu-west-1").save()
    (tmp_path / "state/clusters/broken").mkdir()
    (tmp_path / "state/clusters/broken/cluster.json").write_text("{")
    rows = {row["cluster"]: row for row in json.loads(phalanx("ls", "--json")[1])}
    assert rows["one"]["state"] == "CREATE_COMPLETE"
    assert (rows["two"]["state"], rows["three"]["state"]) == ("gone", "never created")
    assert rows["broken"]["state"].startswith("unknown: ")
    assert isinstance(fake.state(stack_id), StackState)
    assert "CREATE_COMPLETE" in phalanx("ls")[1]


def completed(typed: str, monkeypatch, capsys) -> list[str]:
    """Return what bash completes after `phalanx WORDS` and Tab."""
    monkeypatch.setenv("_PHALANX_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", f"phalanx {typed}")
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split(" "))))
    with pytest.raises(SystemExit):
        cli.main()
    return [line.partition(",")[2] for line in capsys.readouterr().out.splitlines() if line]


def test_tab_completes_clusters_and_nodes_from_what_is_kept_here(cluster, monkeypatch, capsys):
    Cluster("deep", "aws", "us-east-1").save()
    assert completed("status -c de", monkeypatch, capsys) == ["deep", "demo"]
    assert completed("ssh -c demo w", monkeypatch, capsys) == ["worker2", "worker3", "worker4"]
    assert completed("forward -c demo --node h", monkeypatch, capsys) == ["head"]
    assert completed("ssh -c nobody w", monkeypatch, capsys) == []
    assert "exec" in completed("ex", monkeypatch, capsys)


@pytest.mark.parametrize("line", ["run -- python tr", "run --launcher mpi -- tr", "run python tr", "launch -n 2 -- tr"])
def test_tab_completes_files_in_the_command(cluster, monkeypatch, capsys, line):
    assert completed(line, monkeypatch, capsys) == ["tr"]


def test_tab_completes_the_new_words(cluster, monkeypatch, capsys):
    assert completed("jobs --sta", monkeypatch, capsys) == ["--state"]
    assert completed("jobs --state f", monkeypatch, capsys) == ["failed"]
    assert completed("logs --ti", monkeypatch, capsys) == ["--timestamps"]


@pytest.mark.parametrize("connected", [True, False])
def test_tab_completes_jobs_only_over_an_open_connection(cluster, job, monkeypatch, capsys, connected):
    monkeypatch.setattr("phalanx.cli.complete._JOBS_WITHIN_S", 30)
    monkeypatch.setattr(type(cluster.remote()), "connected", lambda _: connected, raising=False)
    assert completed("logs -c demo 2", monkeypatch, capsys) == ([job.id] if connected else [])
    assert completed("stop -c demo f", monkeypatch, capsys) == (["first"] if connected else [])


def test_tab_offers_no_name_that_a_shell_would_read_as_more_than_a_word(cluster, monkeypatch, capsys):
    monkeypatch.setattr(type(cluster.remote()), "connected", lambda _: True, raising=False)
    names = ["first", "first", "two words", "$(reboot)", ""]
    jobs = [
        JobStatus(str(n), name, "exec", (), JobState.FAILED, 0.0, None, None, 1, None, "", (), ())
        for n, name in enumerate(names)
    ]
    monkeypatch.setattr("phalanx.cli.complete.list_jobs", lambda _: jobs)
    assert completed("logs -c demo ", monkeypatch, capsys) == ["first", *"01234"]
