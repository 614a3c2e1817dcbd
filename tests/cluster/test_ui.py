"""`phalanx ui` on real nodes, in a real Chromium: a training, its curves, load, output and stacks; a node that dies."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, a_browser
from local_clouds import break_on_purpose
from terminals import Terminal, a_cluster

pytestmark = pytest.mark.cluster

SPEC = "name: seen\ncloud: local\nnodes: 3\nmin: 2\ntype: c5.large\nshared: /efs\nkeep: no\n"
# The map shows a dead node within this, where tests have this machine's cores to themselves.
SHOWN_WITHIN_S = 20.0
TRAIN = """
import os, time
from event_files import event_file, record, scalar
rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", "0"))
if rank == 0:
    os.makedirs("runs", exist_ok=True)
    events, table = open("runs/events.out.tfevents.1.here", "wb"), open("acc.csv", "w")
    events.write(event_file([]))
    print("step,accuracy", file=table, flush=True)
def wait_for_the_others(seconds):
    time.sleep(seconds)
step = 0
while True:
    step += 1
    if rank == 0:
        events.write(record(scalar("loss <b>", step, 1 / step)))
        events.flush()
        print(f"{step},{1 - 1 / step}", file=table, flush=True)
    print(f"rank {rank} at step {step} <script>alert(1)</script>\\x1b[2J", flush=True)
    wait_for_the_others(0.5)
"""


@pytest.fixture(scope="module")
def terminal() -> Iterator[Terminal]:
    with a_cluster(SPEC) as terminal:
        yield terminal


@pytest.fixture(scope="module")
def browser(terminal) -> Iterator[Browser]:
    """A browser that has opened the page of `phalanx ui`."""
    with a_browser() as browser, terminal.start("ui", errors=None) as serving:
        try:
            assert serving.stdout
            link = serving.stdout.readline().strip()
            key = link.partition("#")[2]
            assert key not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
            browser.visit(link)
            browser.wait_for("seen", "#clusters", within_s=120)
            yield browser
        finally:
            serving.send_signal(signal.SIGINT)
            assert serving.wait(60) == 0
    assert not [path for path in terminal.state.rglob("*.log") if key in path.read_text(errors="replace")]


@pytest.fixture(scope="module")
def job(terminal, tmp_path_factory) -> str:
    code = tmp_path_factory.mktemp("code")
    shutil.copy(Path(__file__).parents[1] / "fakes/event_files.py", code)
    (code / "train.py").write_text(TRAIN)
    run = ("run", "--detach", "--directory", str(code), "--name", "train-it", "-n", "3", "--", "python3", "train.py")
    terminal.phalanx(*run)
    return json.loads(terminal.phalanx("jobs", "--json").stdout)[0]["id"]


def test_a_training_is_seen_while_it_runs_and_stopped(terminal, browser, job):
    origin = browser.run("return location.origin")
    browser.visit(f"{origin}/clusters/seen/jobs/{job}")
    browser.wait_for("running", "#facts", within_s=60)
    browser.wait_for("rank 0 at step", "#log", within_s=60)
    browser.wait(lambda: browser.count("#curves figure") == 2, "two curves", within_s=60)
    points = "return [...document.querySelectorAll('#curves figure')].map((one) => Number(one.dataset.points))"
    before = browser.run(points)
    browser.wait(
        lambda: all(now > old for now, old in zip(browser.run(points), before, strict=True)), "curves that grow"
    )
    assert "loss <b>" in browser.text("#curves") and "accuracy" in browser.text("#curves")
    browser.wait(lambda: browser.count("#load canvas") >= 3, "the load", within_s=60)
    assert "\\x1b[2J" in browser.text("#log") and browser.count("#log script") == 0
    browser.type("#log-rank", "2")
    browser.wait(
        lambda: "rank 2 at" in browser.text("#log") and "rank 0 at" not in browser.text("#log"), "only rank 2", 60
    )
    browser.click("#stop")
    browser.click("#stop-dialog button[value=stop]")
    browser.wait_for("stopped", "#facts", within_s=120)
    assert json.loads(terminal.phalanx("jobs", "--json").stdout)[0]["state"] == "stopped"
    browser.wait_for("The output has ended", "#log-state", within_s=60)
    shown = terminal.phalanx("plot", "train-it", "--curve", "acc*")
    assert f"train-it ({job})" in shown.stdout and "accuracy  (acc.csv)" in shown.stdout and "|*" in shown.stdout
    terminal.phalanx("plot", job, "-o", "curves.png")
    assert (terminal.directory / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_node_that_dies_is_marked_within_20_seconds(terminal, browser):
    browser.visit(f"{browser.run('return location.origin')}/clusters/seen")
    browser.wait(lambda: browser.count(".tile.ready") == 3, "three nodes", within_s=60)
    browser.wait(lambda: browser.count("#events tbody tr") > 10, "the stack's events", within_s=60)
    assert browser.text("#stack-cause") == ""
    nodes = {node["name"]: node for node in json.loads(terminal.phalanx("nodes", "--json").stdout)}
    victim = nodes["deeplearning-worker3"]["instance_id"]
    # One whose death AWS notices at once is replaced within a second here.
    break_on_purpose(terminal, kill={"instance_id": victim, "silent": True, "noticed_after_s": 300})
    crowd = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    browser.wait(lambda: browser.count(".tile:not(.ready)") == 1, "the dead node", within_s=SHOWN_WITHIN_S * crowd)
    assert "worker3" in browser.text(".tile:not(.ready)")


def test_what_was_fetched_is_seen_after_the_end_of_the_cluster(terminal, browser, job):
    """Another cluster's output that this machine keeps."""
    origin = browser.run("return location.origin")
    directory = terminal.state / "logs/long-gone"
    directory.mkdir(parents=True, mode=0o700)
    (directory / f"{job}.old.log").write_text("1800000000.000 stdout [0] what it wrote\n")
    browser.visit(origin)
    browser.wait_for(f"long-gone / {job}", "#kept", within_s=60)
    browser.visit(f"{origin}/kept/long-gone/{job}")
    browser.wait_for("what it wrote", "#log", within_s=60)


def test_what_does_not_exist_is_a_sentence(terminal, browser):
    origin = browser.run("return location.origin")
    browser.visit(f"{origin}/clusters/seen/jobs/261127-000000-000000")
    browser.wait_for("its directory is gone", "#trouble", within_s=60)
    browser.visit(f"{origin}/clusters/never-made")
    browser.wait_for("no cluster 'never-made'", "#trouble", within_s=60)
