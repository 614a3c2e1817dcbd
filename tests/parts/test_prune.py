"""`phalanx jobs --prune`: old jobs go, with all that is theirs; running ones, checkpoints and other files stay."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from error_codes import raises_code
from fake_jobs import run, wait_for_line

from phalanx.cli import jobs as command
from phalanx.jobs.ended_jobs import Space, ended_jobs, space
from phalanx.jobs.job import JOBS, JobSpec, list_jobs, open_job, submit
from phalanx.objects import trees
from phalanx.runner.files import state as states
from phalanx.runner.verbs.prune import prune


@pytest.fixture
def pruned(two_nodes, monkeypatch):
    """Run `phalanx jobs` with these arguments on the two nodes; return its exit code and its output."""
    monkeypatch.setattr(command, "load_cluster", lambda *_: two_nodes)

    def phalanx(*arguments: str, answer: str = "") -> tuple[int, str]:
        monkeypatch.setattr(command, "require_terminal", lambda: None)
        done = CliRunner().invoke(command.command, arguments, input=answer)
        return done.exit_code, done.stdout

    return phalanx


def grow_old(directory: Path, days: int) -> None:
    """Have a job end so many days earlier."""
    state = json.loads((directory / "state.json").read_text())
    (directory / "state.json").write_text(json.dumps({**state, "ended_at": state["ended_at"] - days * 86400}))


def test_old_jobs_go_and_younger_ones_and_checkpoints_stay(two_nodes, code, pruned):
    root = Path(two_nodes.shared, JOBS)
    writes = "echo done > $PHALANX_CHECKPOINT/model; head -c 300000 /dev/zero > result"
    _, old = run(two_nodes, code, "sh", "-c", writes, processes=1, checkpoint="kept/model")
    _, young = run(two_nodes, code, "true", processes=1)
    grow_old(root / old.id, 31)
    grow_old(root / young.id, 29)
    status, out = pruned("--prune", "30d", "--yes", "--json")
    found = json.loads(out)
    assert status == 0
    assert [(job["id"], job["state"], job["removed"]) for job in found["jobs"]] == [(old.id, "succeeded", True)]
    assert 300_000 <= found["freed_bytes"] < 10_000_000
    assert [job.id for job in list_jobs(two_nodes)] == [young.id]
    assert [path.name for path in root.iterdir()] == [young.id]
    assert Path(two_nodes.shared, "kept/model/model").read_text() == "done\n"
    for reference in (old.id, old.id[:-2], old.id[-8:]):
        with raises_code("job-removed", old.id, "succeeded", time.strftime("%Y-")):
            open_job(two_nodes, reference)
    with raises_code("no-job", "nosuch"):
        open_job(two_nodes, "nosuch")


def test_a_name_means_the_job_that_there_is_and_a_note_of_anybody_is_checked(two_nodes, code, pruned):
    _, old = run(two_nodes, code, "true", processes=1, name="trial")
    assert pruned("--prune", "0s", "--yes")[0] == 0
    with raises_code("job-removed", old.id):
        open_job(two_nodes, "trial")
    with raises_code("no-job"):
        open_job(two_nodes)
    _, new = run(two_nodes, code, "true", processes=1, name="trial")
    assert open_job(two_nodes, "trial").id == new.id
    notes = Path(two_nodes.shared, ".phalanx/pruned")
    with notes.open("a") as file:
        file.write('not json\n{"id": "../x", "name": "other"}\n')
    with raises_code("no-job"):
        open_job(two_nodes, "other")
    assert pruned("--prune", "0s", "--yes")[0] == 0
    assert [json.loads(line)["id"] for line in notes.read_text().splitlines()] == [old.id, new.id]
    notes.unlink()
    notes.mkdir()
    with raises_code("no-job"):
        open_job(two_nodes, "trial")


def test_a_running_job_a_damaged_one_and_a_submission_stay(two_nodes, code, pruned):
    root = Path(two_nodes.shared, JOBS)
    _, damaged = run(two_nodes, code, "true", processes=1)
    (root / damaged.id / "state.json").write_text("{")
    (root / "260101-000000-000000").mkdir()
    job = submit(two_nodes, JobSpec(("sh", "-c", "echo here; sleep 600"), "exec", processes=1, directory=code))
    wait_for_line(job.follow(), "here")
    before = set(root.iterdir())
    assert pruned("--prune", "0s", "--yes", "--json") == (
        0,
        json.dumps({"jobs": [], "freed_bytes": 0}, indent=2) + "\n",
    )
    assert set(root.iterdir()) == before
    job.stop()
    assert [one.id for one in ended_jobs(two_nodes, time.time() + 60)] == [job.id]


def test_a_job_whose_directory_has_checkpoints_stays(two_nodes, code, pruned):
    root = Path(two_nodes.shared, JOBS)
    _, first = run(two_nodes, code, "true", processes=1)
    _, second = run(two_nodes, code, "true", processes=1, checkpoint=f"{JOBS}/{first.id}/work/model")
    _, out = pruned("--prune", "0s", "--yes", "--json")
    assert [job["id"] for job in json.loads(out)["jobs"]] == [second.id]
    assert (root / first.id / "work/model").is_dir()


def test_what_a_running_job_links_to_stays(two_nodes, code, pruned):
    root = Path(two_nodes.shared, JOBS)
    _, first = run(two_nodes, code, "sh", "-c", "mkdir data", processes=1)
    sleeps = ("sh", "-c", "echo here; sleep 600")
    links = {"data": f"{JOBS}/{first.id}/work/data"}
    job = submit(two_nodes, JobSpec(sleeps, "exec", processes=1, directory=code, links=links))
    wait_for_line(job.follow(), "here")
    assert pruned("--prune", "0s", "--yes")[0] == 0
    assert (root / first.id / "work/data").is_dir()
    job.stop()
    assert pruned("--prune", "0s", "--yes")[0] == 0
    assert list(root.iterdir()) == []


def test_it_asks_and_no_removes_nothing(two_nodes, code, pruned):
    _, job = run(two_nodes, code, "true", processes=1, tags={"kind": "trial"})
    assert pruned("--prune", "0s", answer="n\n")[0] == 1
    assert pruned("--prune", "0s", "--tag", "kind=other", "--yes")[0] == 0
    assert [one.id for one in list_jobs(two_nodes)] == [job.id]
    assert pruned("--prune", "0s", "--tag", "kind=trial", answer="y\n")[0] == 0
    assert list_jobs(two_nodes) == []


def test_what_an_interrupted_call_has_left_goes_with_the_next(two_nodes, code, pruned):
    root = Path(two_nodes.shared, JOBS)
    _, job = run(two_nodes, code, "true", processes=1)
    (root / job.id).rename(root / f".pruned-{job.id}")
    assert list_jobs(two_nodes) == []
    assert pruned("--prune", "30d", "--yes")[0] == 0
    assert list(root.iterdir()) == []


def test_the_notes_are_written_once_also_by_a_call_that_breaks_off(two_nodes, code, monkeypatch, capsys):
    root, notes = Path(two_nodes.shared, JOBS), Path(two_nodes.shared, ".phalanx/pruned")
    jobs = sorted(run(two_nodes, code, "true", processes=1)[1].id for _ in range(3))
    write_file, remove, written = states.write_file, trees.remove, []

    def counted(path, text):
        written.append(path)
        write_file(path, text)

    def interrupted(path):
        if path.endswith(jobs[2]):
            raise KeyboardInterrupt
        return remove(path)

    monkeypatch.setattr(states, "write_file", counted)
    monkeypatch.setattr(trees, "remove", interrupted)
    with pytest.raises(KeyboardInterrupt):
        prune(str(root), time.time() + 60, {}, is_real=True)
    assert [json.loads(line)["id"] for line in notes.read_text().splitlines()] == jobs[:2]
    assert written == [str(notes)]
    assert [json.loads(line)["removed"] for line in capsys.readouterr().out.splitlines()] == [True, True]
    monkeypatch.setattr(trees, "remove", remove)
    prune(str(root), time.time() + 60, {}, is_real=True)
    assert written == [str(notes)], "nothing was removed, but what had been left"


def test_yes_alone_is_a_mistake(pruned):
    assert pruned("--yes")[0] == 2
    assert pruned("--prune", "soon")[0] == 2


def test_much_space_is_said(two_nodes, code, pruned, monkeypatch):
    run(two_nodes, code, "sh", "-c", "head -c 300000 /dev/zero > result", processes=1)
    assert space(two_nodes).bytes > 300_000 and not space(two_nodes).is_large
    monkeypatch.setattr(command, "space", lambda _: Space(21 << 30, 1 << 60))
    notes = []
    monkeypatch.setattr(command, "note", notes.append)
    pruned()
    assert "--prune" in notes[0]


@pytest.mark.parametrize(
    ("taken", "of_all", "is_large"),
    [(19 << 30, 1 << 60, False), (21 << 30, 1 << 60, True), (9 << 30, 100 << 30, False), (11 << 30, 100 << 30, True)],
)
def test_space_is_large_above_20_gib_or_a_tenth(taken, of_all, is_large):
    assert Space(taken, of_all).is_large is is_large
