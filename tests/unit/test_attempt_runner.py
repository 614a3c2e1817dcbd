"""An attempt from its checks to its end; its starters are handlers in the runner's loop: no process, no wait."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest
from fake_nodes import roster

from phalanx.node.roster import Missing, Node
from phalanx.runner import frames
from phalanx.runner.files.job_status import NodeVerdict
from phalanx.runner.files.output import OutputWriter
from phalanx.runner.head.attempt_runner import AttemptRunner
from phalanx.runner.head.load_book import Loads
from phalanx.runner.load import Load, pack
from phalanx.runner.login import Line
from phalanx.runner.loop import Loop
from phalanx.runner.process import PreparedJob, Process
from phalanx.runner.starter.answers import REFUSED

JOB = PreparedJob(("true",), "exec", id="1", directory="/efs/1")
HEAD, OTHER = "deeplearning-worker1", "deeplearning-worker2"
WELL = {"problem": "", "code": 0, "taken": [], "boot_id": "b"}
CLEAN = {"ended": [], "killed": [], "left": []}


class Starter:
    """A node's starter: nothing is missing, and what it starts runs until it is ended. Tests change its answers."""

    def __init__(self, loop: Loop) -> None:
        self.found: dict[str, object] = WELL
        self.on_spawn: Callable[[int], None] = lambda _number: None
        self.on_terminate: Callable[[int], None] = lambda number: self.ends(number, -15, was_ending=True)
        self.on_notice: Callable[[int], None] = lambda _number: None
        self.reasons: list[str] = []
        self.on_look: Callable[[int], None] = lambda _number: None
        self.says_last: list[tuple[int, dict[str, str]]] = []
        self.heard: list[int] = []
        self.commands: list[str] = []
        self._is_dead = False
        self._living: list[int] = []
        self._reader = frames.FrameReader()
        to_us, self._to_fd = os.pipe()
        self._from_fd, self._out_fd = os.pipe()
        self._error_fd, error = os.pipe()
        self.fds = [to_us, error]
        os.write(self._out_fd, frames.MAGIC)
        loop.watch(to_us, self._hear)

    def line(self) -> Line:
        return Line(self._to_fd, self._from_fd, self._error_fd, lambda: None)

    def ends(self, number: int, code: int, was_ending: bool = False, at: float | None = None) -> None:
        self._living.remove(number)
        self._say(frames.EXIT, {"code": code, "at": at or time.time(), "ending": was_ending, "oom_kills": None}, number)

    def has_rank(self, number: int, label: str) -> None:
        self._living.append(number)
        self._say(frames.RANK, {"label": label}, number)

    def writes(self, number: int) -> None:
        os.write(self._out_fd, frames.pack(frames.OUTPUT, number, b"here", frames.STDOUT))

    def dies(self) -> None:
        self._is_dead = True
        os.close(self._out_fd)

    def _hear(self, fd: int) -> None:
        for kind, _, number, payload in self._reader.feed(os.read(fd, 1 << 16)):
            self.heard.append(kind)
            self._obey(kind, number, json.loads(payload or b"{}"))

    def _obey(self, kind: int, number: int, body: dict[str, list[str]]) -> None:
        if kind == frames.CHECK:
            self._say(frames.CHECKED, self.found)
        elif kind == frames.SPAWN:
            self._living.append(number)
            self.commands.append(body["argv"][-1])
            self.on_spawn(number)
        elif kind == frames.GLANCE:
            self._say(frames.DOING, {"text": "(work) waits" * 100}, number)
            self.on_look(number)
        elif kind == frames.NOTICE:
            self.reasons.append(body["reason"])
            for one in list(self._living):
                self.on_notice(one)
        elif kind == frames.TERMINATE:
            self.reasons.append(body["reason"])
            for one in list(self._living):
                self.on_terminate(one)
        elif kind == frames.END:
            for last in (*self.says_last, (frames.REPORT, CLEAN)):
                self._say(*last)

    def _say(self, kind: int, body: object, number: int = 0) -> None:
        if not self._is_dead:
            os.write(self._out_fd, frames.pack_json(kind, body, number))


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def starters(loop: Loop) -> Iterator[dict[str, Starter]]:
    found = {node: Starter(loop) for node in (HEAD, OTHER)}
    yield found
    for starter in found.values():
        for fd in starter.fds:
            os.close(fd)


@pytest.fixture
def context(loop: Loop, tmp_path) -> SimpleNamespace:
    output = OutputWriter(str(tmp_path / "output"))
    return SimpleNamespace(
        loop=loop,
        output=output,
        loads=Loads(str(tmp_path)),
        socket=SimpleNamespace(request=None, look=None),
        stop_requested=False,
        time_left_s=lambda: float("inf"),
        publish=output.flush,
        on_notice=lambda _text: None,
        on_silence=lambda _text: None,
    )


@pytest.fixture
def asked(monkeypatch) -> list[str]:
    """The nodes that were queried over a new connection; they do not answer."""
    names: list[str] = []

    class Inquiry:
        boot_id = ""

        def __init__(self, _directory: str, _job_id: str, node: Node) -> None:
            names.append(node.name)
            self._name = node.name

        def verdict(self) -> NodeVerdict:
            return NodeVerdict(self._name, False, 0, "")

    monkeypatch.setattr("phalanx.runner.head.settle.Inquiry", Inquiry)
    return names


@pytest.fixture
def conduct(context, starters, asked, monkeypatch) -> Callable[..., AttemptRunner]:
    # Children of this process belong to other tests.
    monkeypatch.setattr("phalanx.runner.head.attempt_runner.reap", list)

    def make(*processes: Process, **changes: int) -> AttemptRunner:
        return AttemptRunner(
            context,
            replace(JOB, **changes),
            roster(2, 1),
            processes,
            lambda _ranks: None,
            lambda node: starters[node].line(),
        )

    return make


def rank(number: int, node: str) -> Process:
    return Process(str(number), node, ("work", str(number)), ("true",), {node: 1}, is_rank=True)


def ending(starter: Starter, code: int) -> Callable[[int], None]:
    return lambda number: starter.ends(number, code)


def test_all_well(conduct, starters):
    for starter in starters.values():
        starter.on_spawn = ending(starter, 0)
    attempt = conduct(rank(0, HEAD), rank(1, OTHER))
    verdicts = attempt.run()
    assert attempt.outcome.record["state"] == "succeeded"
    assert [(verdict.node, verdict.clean) for verdict in verdicts] == [(HEAD, True), (OTHER, True)]
    assert starters[OTHER].heard == [frames.CHECK, frames.SPAWN, frames.END]


def test_a_silent_job_s_first_rank_is_looked_at_until_one_writes(conduct, starters, context, monkeypatch):
    monkeypatch.setattr("phalanx.runner.head.attempt_runner._SILENT_AFTER_S", 0.0)
    heard: list[str] = []
    context.on_silence = heard.append

    def looked_at(number):
        if starters[OTHER].heard.count(frames.GLANCE) == 2:
            starters[OTHER].writes(number)
            starters[OTHER].ends(number, 0)

    starters[OTHER].on_look = looked_at
    starters[HEAD].on_spawn = ending(starters[HEAD], 0)
    # Rank 1 has ended, and rank 0 is silent.
    conduct(rank(0, OTHER), rank(1, HEAD)).run()
    assert starters[OTHER].heard.count(frames.GLANCE) == 2 and frames.GLANCE not in starters[HEAD].heard
    assert heard[0].startswith("after 0 s, rank 0 (work) waits") and len(heard[0]) == 300


@pytest.mark.parametrize(
    ("code", "message"), [(0, f"{OTHER}: uploads go on"), (3, f"rank 0 on {OTHER} ended with exit code 3")]
)
def test_a_success_says_what_is_not_known_of_it_and_a_failure_its_own_reason(conduct, starters, code, message):
    starters[OTHER].on_spawn = ending(starters[OTHER], code)
    starters[OTHER].says_last = [(frames.UNSURE, {"reason": "uploads go on"})] * 2
    attempt = conduct(rank(0, OTHER))
    attempt.run()
    assert attempt.outcome.record["message"] == message


def test_a_rank_that_the_kernel_may_have_ended_is_reported_with_the_memory_in_use_there(conduct, starters, context):
    context.loads.take(OTHER, pack(Load(node_memory=14.8 * 2**30, node_memory_total=15 * 2**30)))
    starters[OTHER].on_spawn = ending(starters[OTHER], -9)
    attempt = conduct(rank(0, HEAD), rank(1, OTHER))
    attempt.run()
    message = attempt.outcome.record["message"]
    assert message.startswith(f"rank 1 on {OTHER} was ended by SIGKILL (perhaps out of memory: ")
    assert message.endswith("; 14.8 of 15.0 GiB were in use there)")


def test_what_is_missing_ends_it_before_anything_starts(conduct, starters):
    starters[OTHER].found = {"problem": "no work on {nodes}", "code": 127, "taken": [], "boot_id": "b"}
    attempt = conduct(rank(0, HEAD), rank(1, OTHER))
    attempt.run()
    assert (attempt.outcome.record["message"], attempt.began_at) == (f"no work on {OTHER}", None)
    assert [starter.heard for starter in starters.values()] == [[frames.CHECK, frames.END]] * 2


def test_a_rank_that_fails_ends_the_others_and_is_reported(conduct, starters):
    starters[OTHER].on_spawn = ending(starters[OTHER], 3)
    attempt = conduct(rank(0, HEAD), rank(1, OTHER))
    attempt.run()
    record = attempt.outcome.record
    assert (record["message"], record["exit_code"]) == (f"rank 1 on {OTHER} ended with exit code 3", 3)
    assert starters[HEAD].heard == [frames.CHECK, frames.SPAWN, frames.TERMINATE, frames.END]


def test_of_two_that_fail_the_first_is_reported_although_the_other_was_heard_before_it(conduct, starters, monkeypatch):
    # This machine may stall between the two.
    monkeypatch.setattr("phalanx.runner.head.verdict._MOMENT_S", 3600.0)
    before = time.time()
    starters[HEAD].on_spawn = ending(starters[HEAD], 3)
    starters[OTHER].on_terminate = lambda number: starters[OTHER].ends(number, 7, at=before)
    attempt = conduct(rank(0, HEAD), rank(1, OTHER))
    attempt.run()
    record = attempt.outcome.record
    assert (record["message"], record["exit_code"]) == (f"rank 1 on {OTHER} ended with exit code 7", 7)


def test_a_stop_ends_all_and_is_no_failure(conduct, starters, context):
    def stop(_number: int) -> None:
        context.stop_requested = True

    starters[HEAD].on_spawn = stop
    attempt = conduct(rank(0, HEAD))
    attempt.run()
    assert attempt.outcome.record["state"] == "stopped"
    assert starters[HEAD].heard[-2:] == [frames.TERMINATE, frames.END]


def test_a_job_whose_time_is_over_has_its_notice_and_is_asked_to_end(conduct, starters, context):
    context.time_left_s = lambda: 0.0
    starters[HEAD].on_terminate = lambda number: starters[HEAD].ends(number, 1, was_ending=True)
    attempt = conduct(rank(0, HEAD), grace_s=0)
    attempt.run()
    record = attempt.outcome.record
    assert (record["state"], record["exit_code"]) == ("timed out", 124)
    assert list(dict.fromkeys(starters[HEAD].heard))[2:] == [frames.NOTICE, frames.TERMINATE, frames.END]
    assert {*starters[HEAD].reasons} == {"time"}


@pytest.mark.parametrize("code", [0, 3])
def test_a_job_whose_ranks_end_at_the_notice_has_timed_out_all_the_same(conduct, starters, context, code):
    context.time_left_s = lambda: 0.0
    starters[HEAD].on_notice = ending(starters[HEAD], code)
    attempt = conduct(rank(0, HEAD), grace_s=600)
    attempt.run()
    assert attempt.outcome.record["state"] == "timed out"
    assert frames.TERMINATE not in starters[HEAD].heard


def test_a_stop_does_not_wait_for_the_rest_of_the_time_after_the_notice(conduct, starters, context):
    def stop(_number: int) -> None:
        context.stop_requested = True

    context.time_left_s = lambda: 0.0
    starters[HEAD].on_notice = stop
    attempt = conduct(rank(0, HEAD), grace_s=600)
    attempt.run()
    assert attempt.outcome.record["state"] == "timed out"


def test_a_node_without_processes_of_the_job_is_asked_too(conduct, starters, asked):
    starters[HEAD].on_spawn = ending(starters[HEAD], 0)
    verdicts = conduct(rank(0, HEAD)).run()
    assert asked == [OTHER]
    assert [(verdict.node, verdict.clean) for verdict in verdicts] == [(HEAD, True), (OTHER, False)]


def test_a_node_that_is_lost_explains_all_and_is_asked_once_more(conduct, starters, asked):
    starters[OTHER].on_spawn = lambda _number: starters[OTHER].dies()
    attempt = conduct(rank(0, HEAD), rank(1, OTHER))
    verdicts = attempt.run()
    assert attempt.outcome.record["message"] == f"{OTHER} was lost: the connection closed"
    assert (attempt.outcome.died, attempt.lost, asked) == (True, {OTHER}, [OTHER])
    assert [verdict.clean for verdict in verdicts] == [True, False]


def test_a_node_whose_agent_is_silent_is_lost_although_its_starter_lives(conduct, starters, tmp_path, monkeypatch):
    path, whole = tmp_path / "roster.json", roster(2, 1)
    path.write_text(whole.to_json())
    monkeypatch.setenv("PHALANX_ROSTER", str(path))

    def fall_silent(_number: int) -> None:
        path.write_text(whole._replace(nodes=whole.nodes[:1], silent=whole.nodes[1:]).to_json())
        os.utime(path, (1, 1))

    starters[OTHER].on_spawn = fall_silent
    attempt = conduct(rank(0, HEAD), rank(1, OTHER))
    attempt.run()
    assert attempt.outcome.record["message"] == f"{OTHER} was lost: its agent is silent"
    assert (attempt.outcome.died, attempt.lost) == (True, {OTHER})


def test_a_notice_reaches_all_ranks_once_and_explains_the_failure_that_follows(
    conduct, starters, context, tmp_path, monkeypatch
):
    path, whole = tmp_path / "roster.json", roster(2, 1)
    path.write_text(whole.to_json())
    monkeypatch.setenv("PHALANX_ROSTER", str(path))
    shown: list[str] = []

    def note(text: str) -> None:
        shown.append(text)
        starters[OTHER].ends(1, 1)

    def give_notice(_number: int) -> None:
        path.write_text(whole._replace(leaving=(Missing(OTHER, "AWS takes it back"),)).to_json())
        os.utime(path, (1, 1))

    context.on_notice = note
    starters[OTHER].on_spawn = give_notice
    attempt = conduct(rank(0, HEAD), rank(1, OTHER))
    attempt.run()
    assert shown == [f"{OTHER} leaves (AWS takes it back)"]
    assert [starter.heard.count(frames.NOTICE) for starter in starters.values()] == [1, 1]
    assert attempt.outcome.record["message"] == f"{shown[0]}: rank 1 on {OTHER} ended with exit code 1"
    assert attempt.outcome.died


def test_a_node_that_answers_in_another_boot_has_rebooted(conduct, starters, asked, monkeypatch):
    monkeypatch.setattr("phalanx.runner.head.settle.Inquiry.boot_id", "another", raising=False)
    starters[OTHER].on_spawn = lambda _number: starters[OTHER].dies()
    attempt = conduct(rank(0, HEAD), rank(1, OTHER))
    attempt.run()
    assert (attempt.outcome.record["message"], attempt.outcome.died) == (f"{OTHER} rebooted", True)


def engine(early: bool) -> Process:
    return Process("mpiexec", HEAD, ("mpiexec",), ("true",), {HEAD: 1, OTHER: 1}, early=early)


def test_a_daemon_starts_when_its_node_may_be_reached_and_its_agent_hears_the_end(conduct, starters, context):
    heard, agent = os.pipe()
    starters[HEAD].on_spawn = lambda _number: context.socket.request(agent, OTHER, "orted")

    def end_both(daemon: int) -> None:
        starters[OTHER].ends(daemon, 1)
        starters[HEAD].ends(0, 0)

    starters[OTHER].on_spawn = end_both
    attempt = conduct(engine(early=True))
    attempt.run()
    assert attempt.outcome.record["state"] == "succeeded"
    assert starters[OTHER].commands == ["orted"]
    assert os.read(heard, 64) == b"1\n"
    os.close(heard)


def test_an_engine_that_ended_a_rank_is_awaited_because_it_knows_why(conduct, starters, monkeypatch):
    monkeypatch.setattr("phalanx.runner.head.attempt_runner._ENGINE_MAY_SPEAK_S", 0.0)
    starter = starters[HEAD]

    def end_the_rank_then_itself(engine: int) -> None:
        starter.has_rank(number=7, label="0")
        starter.ends(7, -15)
        threading.Timer(0.05, starter.ends, (engine, 137)).start()

    starter.on_spawn = end_the_rank_then_itself
    attempt = conduct(engine(early=False))
    attempt.run()
    assert attempt.outcome.record["message"] == f"mpiexec on {HEAD} ended with exit code 137"
    assert frames.TERMINATE not in starter.heard


def test_a_daemon_on_a_host_that_is_no_node_is_refused(conduct, starters, context):
    heard, agent = os.pipe()

    def ask(number: int) -> None:
        context.socket.request(agent, "elsewhere", "orted")
        starters[HEAD].ends(number, 0)

    starters[HEAD].on_spawn = ask
    conduct(engine(early=False)).run()
    assert os.read(heard, 64) == f"{REFUSED}\n".encode()
    os.close(heard)
