"""The command line in memory: help, misuse, output and errors of all commands."""

from __future__ import annotations

import importlib
import inspect
import io
import json
import runpy
import sys
from pathlib import Path

import click
import pytest
from error_codes import raises_code
from fake_cloud import roster

from phalanx import cli
from phalanx.cli import following, jobs, progress, run
from phalanx.cli.console import duration, print_table
from phalanx.cluster.cluster_record import Cluster
from phalanx.data import table
from phalanx.errors import CloudError, ClusterError
from phalanx.jobs.job_output import OutputLine
from phalanx.launchers import LAUNCHERS
from phalanx.runner.files.job_record import JobRecord
from phalanx.runner.files.job_status import JobState, JobStatus


def test_a_mistyped_command_brings_the_nearest(phalanx):
    assert phalanx("statsu") == 2
    assert "Did you mean 'status'?" in phalanx.err


def test_words_of_other_tools_lead_to_ours(phalanx):
    known = {"--version", *(name for section in cli.COMMANDS.values() for name in section)}
    words = table("other_tools")
    for word, ours in words["commands"].items():
        assert word not in known and ours.split()[0].strip("`") in known
        assert phalanx(word) == 2
        assert f"`phalanx {ours}`" in phalanx.err
    options = {name for parameter in run.command.params for name in parameter.opts}
    for word, ours in words["options"].items():
        assert word not in options and ours.split()[0] in options
        assert phalanx("run", word, "4", "--", "true") == 2
        assert f"`{ours}`" in phalanx.err
        assert "Did you mean" not in phalanx.err


@pytest.mark.parametrize("command", ["up", "plan", "template", "policy"])
def test_a_name_where_the_file_has_it_leads_to_the_file(phalanx, command):
    assert phalanx(command, "-c", "demo") == 2
    assert "`--file` names" in phalanx.err


@pytest.mark.parametrize("command", ["reap", "doctor", "adopt demo", "image ls", "local env"])
def test_a_region_that_does_not_exist_is_a_mistake_everywhere(phalanx, command):
    assert phalanx(*command.split(), "--region", "us-east-9") == 2
    assert "us-east-1" in phalanx.err


def test_a_text_in_place_of_a_number_is_called_no_whole_number(phalanx):
    for arguments in (
        ["jobs", "--limit", "x"],
        ["scale", "x"],
        ["logs", "--tail", "x"],
        ["run", "-n", "x", "--", "true"],
    ):
        assert phalanx(*arguments) == 2
        assert "'x' is no whole number" in phalanx.err


@pytest.mark.parametrize("arguments", [["up"], ["local", "status"], []])
def test_help_is_a_command_too(phalanx, arguments):
    assert phalanx("help", *arguments) == 0
    shown = phalanx.out
    phalanx(*arguments, "--help")
    assert shown == phalanx.out


@pytest.mark.parametrize(("node", "command"), [("ps aux", "ps aux"), ("ps", "ps"), ("cat 'a b'", "cat 'a b'")])
def test_a_command_in_a_node_s_place_brings_the_right_form(phalanx, cloud, monkeypatch, node, command):
    phalanx("up")
    monkeypatch.setattr(Cluster, "roster", lambda _: roster(2))
    assert phalanx("ssh", node) == 2
    phalanx.refused("no-node", f"'{node}'", f"`phalanx ssh -- {command}`", f"`phalanx exec -- {command}`")


@pytest.mark.parametrize("command", [name for section in cli.COMMANDS.values() for name in section])
def test_every_command_has_help_with_examples(phalanx, command):
    assert phalanx(command, "--help") == 0
    assert f"phalanx {command}" in phalanx.out.partition("Examples:")[2]


def test_every_command_that_prints_a_table_has_json():
    modules = [importlib.import_module(module) for section in cli.COMMANDS.values() for module, _ in section.values()]
    tabular = [module for module in modules if "print_table(" in inspect.getsource(module)]
    assert len(tabular) > 5
    for module in tabular:
        commands = list(getattr(module.command, "commands", {"": module.command}).values())
        assert any(option.name == "as_json" for command in commands for option in command.params), module.__name__


def test_an_option_means_the_same_wherever_a_command_has_it():
    options = runpy.run_path(str(Path(__file__).parents[2] / "scripts/commands"))["options"]()
    assert len(options) > 50
    assert {name: spelled.by_meaning for name, spelled in options.items() if len(spelled.by_meaning) > 1} == {}


def test_the_help_of_run_has_every_option_in_one_group(phalanx):
    grouped = [name for names in run.GROUPS.values() for name in names]
    of_launchers = [name for launcher in LAUNCHERS for name in run.of_launcher(launcher)]
    options = [
        option.opts[-1] for option in run.command.get_params(click.Context(run.command)) if option.opts[0][0] == "-"
    ]
    assert sorted(grouped + of_launchers) == sorted(options)


@pytest.mark.parametrize("arguments", [("--launcher", "dmlc"), ("--launcher=dmlc",)])
def test_the_help_of_run_shows_a_launcher_s_options_only_with_it(phalanx, arguments):
    phalanx("run", "--help")
    assert not any(f"\n  {name} " in phalanx.out for launcher in LAUNCHERS for name in run.of_launcher(launcher))
    for line in (("--help", *arguments), (*arguments, "--help")):
        phalanx("run", *line)
        assert "\n  --servers S" in phalanx.out and "\n  --ps P" not in phalanx.out


def test_the_one_line_help_of_the_table_is_the_command_s_own(phalanx):
    phalanx("--help")
    for section in cli.COMMANDS.values():
        for name, (_, line) in section.items():
            assert f"{name} " in phalanx.out
            assert line.endswith(".")


@pytest.mark.parametrize(
    ("state", "hint"),
    [
        (JobState.RUNNING, "The job continues: `phalanx logs -f 261121-095500-abcd` follows it"),
        (JobState.FAILED, "The job has ended (failed): `phalanx logs 261121-095500-abcd` shows its output."),
        (None, "`phalanx logs 261121-095500-abcd` shows its output."),
    ],
)
def test_output_that_can_t_be_written_does_not_hide_what_becomes_of_the_job(phalanx, monkeypatch, state, hint):
    class Busy:
        id = "261121-095500-abcd"

        def follow(self, **_):
            yield OutputLine("0", "deeplearning-worker1", "stdout", 0.0, b"epoch 1")

        def status(self):
            if state is None:
                raise ClusterError("the head does not answer")
            return JobStatus.first(JobRecord((), "exec", id=self.id))._replace(state=state)

    with io.TextIOWrapper(open("/dev/full", "wb", buffering=0)) as full, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", full)
        with raises_code("cannot-write", "261121-095500-abcd", "No space left") as reported:
            following.follow(Busy())
    assert str(reported.value).partition("\n")[2].startswith(hint)


class Bars:
    """A job whose ranks write a progress bar each, and one a line beside."""

    id = "261121-095500-abcd"

    def follow(self, *, drafts, **_):
        for process, data, is_draft in [
            ("0", b"10%", True),
            ("0", b"20%", True),
            ("1", b"5%", True),
            ("1", b"a line", False),
            ("0", b"\r10%\r20%\r30%\r", False),
            ("1", b"7%", True),
            ("1", b"as on Windows\r", False),
        ]:
            if drafts or not is_draft:
                yield OutputLine(process, "deeplearning-worker1", "stdout", 0.0, data, is_draft)


def test_a_stopped_job_that_has_not_ended_is_reported_as_that(capfd):
    class Copying:
        id = "261121-095500-abcd"
        status = JobStatus.first(JobRecord((), "exec", id=id))._replace(
            state=JobState.RUNNING, message="copying checkpoints to s3://b/p; `phalanx stop` now cuts that short"
        )

        def follow(self, **_):
            raise KeyboardInterrupt
            yield

        def stop(self):
            return self.status

    assert following.follow(Copying(), stop_on_interrupt=True) == 130
    told = "job 261121-095500-abcd has not ended yet: copying checkpoints to s3://b/p; `phalanx stop` now cuts"
    assert told in capfd.readouterr().err


def test_a_progress_bar_is_one_line_on_a_terminal(capfd, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    following.follow(Bars())
    clear = "\r\x1b[K"
    assert capfd.readouterr().out == clear.join(
        ["[0] 10%", "[0] 20%", "[1] 5%", "[1] a line\n[0] 30%\n[1] 7%", "[1] as on Windows\n"]
    )


def test_a_dumb_terminal_has_no_colours_and_no_line_that_changes(phalanx, capsys, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    following.follow(Bars())
    shown = capsys.readouterr()
    assert shown.out == "[1] a line\n[0] 30%\n[1] as on Windows\n"
    following.report_stopped(JobStatus.first(JobRecord((), "exec", id="a"))._replace(state=JobState.FAILED))
    with progress.Watch("creating", 0.0) as watch:
        watch.follow(["step"])
    shown += capsys.readouterr()
    phalanx("statsu")
    assert "failed" in "".join(shown) and "\x1b" not in phalanx.err + "".join(shown)


def test_a_progress_bar_goes_into_a_pipe_as_it_was_written(capfd):
    following.follow(Bars())
    assert capfd.readouterr().out == "[1] a line\n[0] \r10%\r20%\r30%\r\n[1] as on Windows\r\n"


def test_a_state_directory_that_can_t_be_used_is_reported_with_the_way_out(phalanx, cloud, tmp_path):
    (tmp_path / "state").write_text("a file")
    assert phalanx("up") == 1
    assert f"error: {tmp_path}/state/clusters/demo" in phalanx.err
    phalanx.refused("os-error", "PHALANX_STATE_DIR")
    assert "Error" not in phalanx.err


def test_a_group_of_commands_without_one_shows_its_help(phalanx):
    assert phalanx("local") == 2
    assert phalanx.err.startswith("Usage: ")


@pytest.mark.parametrize(
    "command", [["status"], ["nodes"], ["ssh"], ["jobs"], ["logs"], ["stop"], ["run", "--", "true"]]
)
def test_a_cluster_that_nobody_knows_is_reported_with_the_way_out(phalanx, command):
    assert phalanx(*command) == 2
    assert "phalanx up" in phalanx.err


def test_an_unexpected_error_is_one_line_and_a_traceback_with_debug(phalanx, cloud, monkeypatch):
    monkeypatch.setattr(cloud, "describe_stacks", lambda **_: 1 / 0)
    assert phalanx("up") == 1
    assert "ZeroDivisionError" in phalanx.err
    assert "Traceback" not in phalanx.err
    assert phalanx("up", "--debug") == 1
    assert "Traceback" in phalanx.err


def test_a_refusal_of_the_cloud_has_its_own_exit_code(phalanx, cloud):
    cloud.refuse_create = CloudError("these credentials may not", "Request a policy.")
    assert phalanx("up") == 3
    assert "error: these credentials may not\nRequest a policy." in phalanx.err


def test_local_status_without_a_local_cloud(phalanx):
    assert phalanx("local", "env") == 5
    assert phalanx("local", "status", "--json") == 0
    assert json.loads(phalanx.out) == {"running": False}
    assert phalanx("local", "stop") == 0


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.04, "0.0 s"), (4.24, "4.2 s"), (200, "3 min 20 s"), (18180, "5 h 03 min")]
)
def test_durations_are_for_people(seconds, text):
    assert duration(seconds) == text


def some_job(number: int, **facts: object) -> JobStatus:
    job = JobRecord(("python", "train.py", "--epochs", "50"), "torchrun", id=f"261127-06010{number}-abcdef")
    return JobStatus.first(job)._replace(ranks={"deeplearning-worker1": 2, "deeplearning-worker2": 2}, **facts)


JOBS = [
    some_job(2, state=JobState.RUNNING, started_at=1_795_759_262.0, processes=4),
    some_job(
        1, state=JobState.FAILED, started_at=1_795_759_262.0, ended_at=1_795_759_300.0, attempt=1, restarts=3,
        processes=4, message="rank 3 on deeplearning-worker2 ended with exit code 1", tags={"model": "resnet"},
        commit=f"{'0123456789' * 4}-dirty",
    ),
    some_job(0, state=JobState.SUCCEEDED, started_at=1_795_758_600.0, ended_at=1_795_758_601.0, processes=4),
]  # fmt: skip


@pytest.fixture
def with_jobs(phalanx, cloud, monkeypatch):
    phalanx("up")
    monkeypatch.setattr(jobs, "list_jobs", lambda _: JOBS)
    monkeypatch.setattr(jobs, "_warn_of_space", lambda _: None)
    return phalanx


def test_jobs_have_their_start_nodes_attempt_and_reason(with_jobs):
    assert with_jobs("jobs") == 0
    assert with_jobs.out.splitlines()[0].split() == [
        *("JOB", "NAME", "STATE", "STARTED", "TOOK", "NODES", "PROCESSES", "ATTEMPT", "LAUNCHER"),
        *("COMMIT", "TAGS", "COMMAND", "REASON"),
    ]
    row = [cell.strip() for cell in with_jobs.out.splitlines()[2].split("  ") if cell]
    assert row == [
        *("261127-060101-abcdef", "-", "failed", "11-27 06:01", "38.0 s", "2", "4", "1", "torchrun"),
        *("0123456789-dirty", "model=resnet"),
        *("python train.py --epochs 50", "rank 3 on deeplearning-worker2 ended with exit code 1"),
    ]
    assert with_jobs("jobs", "--json") == 0
    assert [job["ranks"] for job in json.loads(with_jobs.out)] == [JOBS[0].ranks] * 3


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (("--limit", "1"), "2"),
        (("--state", "failed"), "1"),
        (("--state", "failed", "--state", "succeeded"), "10"),
        (("--state", "failed", "--state", "succeeded", "--limit", "1"), "1"),
        (("--tag", "model=resnet", "--state", "succeeded"), ""),
    ],
)
def test_jobs_are_chosen_by_state_and_number(with_jobs, options, found):
    assert with_jobs("jobs", "--json", *options) == 0
    assert [job["id"][12] for job in json.loads(with_jobs.out)] == list(found)
    assert with_jobs("jobs", *options) == 0
    assert with_jobs("jobs", "--prune", "1d", "--yes", *options) == 2


@pytest.mark.parametrize("width", [60, 80, 120])
def test_jobs_fit_a_narrow_terminal(with_jobs, monkeypatch, width):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(width))
    assert with_jobs("jobs") == 0
    assert max(map(len, with_jobs.out.splitlines())) <= width, with_jobs.out
    assert "JOB" in with_jobs.out and "STATE" in with_jobs.out


def test_a_table_on_a_narrow_terminal_cuts_no_word_and_folds_long_texts(capfd, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    text = "python train.py --epochs 50 --out /efs/日本"
    print_table(("JOB", "NAME", "TOOK", "COMMAND"), [("261121-095500-abcd", "-", "1 min 02 s", text)])
    assert capfd.readouterr().out.splitlines() == [
        "JOB                 TOOK        COMMAND",
        "261121-095500-abcd  1 min 02 s  python train.py --epochs 50",
        "                                --out /efs/日本",
    ]


WIDE = ("261121-095500-abcd", "a-name", "failed", "rank 3 on deeplearning-worker2 ended with exit code 1")


@pytest.mark.parametrize("width", [60, 80])
def test_a_table_that_does_not_fit_has_a_line_for_each_cell(capfd, monkeypatch, width):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(width))
    print_table(("JOB", "NAME", "STATE", "REASON", *"ABCD"), [(*WIDE, *["x" * 20] * 4)] * 2)
    lines = capfd.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width and lines.count("") == 1
    assert "JOB     261121-095500-abcd" in lines and "D       xxxxxxxxxxxxxxxxxxxx" in lines


@pytest.mark.parametrize(
    ("width", "shown"), [(30, "JOB STATE"), (50, "JOB STATE REASON"), (60, "JOB NAME STATE REASON")]
)
def test_a_narrow_terminal_has_the_most_important_columns(capfd, monkeypatch, width, shown):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(width))
    print_table(("JOB", "NAME", "STATE", "REASON"), [WIDE], ("JOB", "STATE", "REASON", "NAME"))
    out, err = capfd.readouterr()
    assert max(map(len, out.splitlines())) <= width
    assert out.splitlines()[0].split() == shown.split()
    assert ("NAME" in err) == (width < 60)


@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize("command", ["launchers", "recipes", "data catalog", "ls", "nodes"])
def test_every_table_fits_a_narrow_terminal(phalanx, cloud, monkeypatch, command, width):
    if command in ("ls", "nodes"):
        phalanx("up")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(width))
    assert phalanx(*command.split()) == 0
    assert max(map(len, phalanx.out.splitlines())) <= width, phalanx.out


def test_a_cell_with_line_breaks_stays_on_its_line(capfd):
    print_table(("JOB", "COMMAND"), [("a", "bash -c 'set -e\n\tmake'"), ("b", "x")])
    assert capfd.readouterr().out.splitlines() == ["JOB  COMMAND", r"a    bash -c 'set -e\x0a\x09make'", "b    x"]


def test_a_table_in_a_pipe_has_a_line_for_each_row_and_all_columns(capfd, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    print_table(("JOB", "NAME", "COMMAND"), [("日本", "-", "python train.py --epochs 50"), ("b", "-", "x")])
    assert capfd.readouterr().out.splitlines() == [
        "JOB   NAME  COMMAND",
        "日本  -     python train.py --epochs 50",
        "b     -     x",
    ]


@pytest.mark.parametrize(("later", "times"), [(0, 1), (30, 2)])
def test_the_tail_of_a_failed_job_is_shown_unless_it_is_still_on_the_screen(capfd, later, times):
    class Failed:
        id = "261121-095500-abcd"

        def follow(self, **_):
            for process, data in (("1", b"rank 1"), ("1", b"KeyError: 'x'"), *[("0", b"a line")] * later):
                yield OutputLine(process, "deeplearning-worker1", "stderr", 0.0, data)
            yield JobStatus.first(JobRecord((), "exec", id=self.id))._replace(
                state=JobState.FAILED, tail=("rank 1", "KeyError: 'x'")
            )

    following.follow(Failed())
    assert capfd.readouterr().err.count("KeyError: 'x'") == times


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("status", "demo"), "`phalanx status -c demo` names a cluster."),
        (("down", "demo"), "`phalanx down -c demo` names a cluster."),
        (("init", "demo"), "`phalanx init -c demo` names a cluster."),
        (("up", "demo"), "The cluster's name is in its file, which `--file` names."),
        (("-c", "demo", "status"), "Options follow the command, as in `phalanx status -c demo`."),
        (("status", "--nodes"), ""),
        (("schema", "demo"), ""),
    ],
)
def test_a_cluster_s_name_in_the_wrong_place_is_refused_with_the_right_one(phalanx, arguments, hint):
    assert phalanx(*arguments) == 2
    second = phalanx.err.splitlines()[1]
    assert second.startswith(f"{hint} `phalanx " if hint else "`phalanx ")
