"""One drill: a cluster's life with a fault in it, and a verdict on how both ended."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.drill.faults import FAULTS
from benchmarks.drill.life import Life, outcome, verdict
from benchmarks.drill.local_cluster import LocalCluster, local_cluster
from benchmarks.drill.scenarios import DOWN, IDLE, NODES, REPLACEMENT, RUN, SCALE, UP, Scenario
from benchmarks.drill.strikes import Struck
from phalanx.errors import PhalanxError

SPEC = (
    "name: drill\ncloud: local\nnodes: {nodes}\nmin: {nodes}\ntype: c5.large\ncapacity: spot\nkeep: no\n"
    "node_timeout: {node_timeout_s:.0f}s\n"
)
SPEED = 10.0
# What a machine with nothing else to do needs, and what two launches in the worst weather take besides.
_CALM_S, _BOOT_S, _WEATHER_S = 120.0, 45.0, 2 * 240.0 / SPEED
# A failure says nothing when the machine has become so much busier than it was when the deadlines were set.
_BUSIER = 2.0
_STRIKES_WITHIN_S = 60.0
_POLL_EVERY_S = 0.05
_LINE = 600
_INTERRUPTED = (130, -2, -9)
Say = Callable[[str], None]


@dataclass
class Result:
    """How a drill ended. `problems` is empty on success; `reason`: the true reason for which the step failed.

    `struck`: what was done. `busy`: how many tasks there were for each CPU. `void`: why the drill proves nothing.
    """

    scenario: Scenario
    took_s: dict[str, float] = field(default_factory=dict)
    struck: str = ""
    reason: str = ""
    problems: list[str] = field(default_factory=list)
    weather: dict[str, int] = field(default_factory=dict)
    busy: float = 1.0
    void: str = ""

    @property
    def failed(self) -> bool:
        return bool(self.problems) and not self.void

    @property
    def verdict(self) -> str:
        """Return one line for people."""
        if self.problems:
            return f"{'void: ' + self.void + '; ' if self.void else ''}{_line('; '.join(self.problems))}"
        return f"failed as it should: {_line(self.reason)}" if self.reason else "ready again, and gone after `down`"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "failed": self.failed}


def _line(text: str) -> str:
    return " ".join(text.split())[:_LINE]


def busy() -> float:
    """Return how many tasks there are for each of this machine's CPUs, on average over the last minute; at least 1."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def run(scenario: Scenario, say: Say, logs: Path | None = None, live: set[LocalCluster] | None = None) -> Result:
    """Live through a scenario; `say` gets its steps. The log of a drill that failed is kept in `logs`.

    `live` has the cluster as long as it exists, so that another thread can end it.
    """
    result = Result(scenario, busy=round(busy(), 1))
    spec = SPEC.format(nodes=NODES, node_timeout_s=_BOOT_S * result.busy + _WEATHER_S / 2)
    with local_cluster(spec) as cluster:
        (known := set() if live is None else live).add(cluster)
        try:
            _Drill(cluster, result, say).live()
        except Exception as error:
            result.problems.append(f"the drill itself: {error!r}")
        finally:
            known.discard(cluster)
        if result.problems and busy() > _BUSIER * result.busy:
            result.void = f"the machine had {busy():.1f} tasks for each CPU in the end, and {result.busy:g} at first"
        if result.problems and logs:
            logs.mkdir(parents=True, exist_ok=True)
            (logs / f"drill-{scenario.seed}-{scenario.number}.log").write_text(cluster.log())
    return result


class _Drill:
    """The life of one cluster: up, the step of the fault, its repair, a job, and down."""

    def __init__(self, cluster: LocalCluster, result: Result, say: Say) -> None:
        self._cluster, self._result, self._say = cluster, result, say
        self._scenario = result.scenario
        self._fault = FAULTS[self._scenario.fault]
        self._deadline_s = _CALM_S * result.busy + _WEATHER_S
        self._life = Life(cluster, NODES, self._deadline_s, SPEED)
        self._struck: Struck | None = None

    def live(self) -> None:
        if self._scenario.weather:
            self._cluster.phalanx("local", "weather", str(self._scenario.seed), "--speed", f"{SPEED:g}")
        step = self._scenario.step
        if step == UP:
            self._cluster.begin()
        else:
            self._must("up", self._life.up)
        if not self._result.problems and step != DOWN:
            self._judge(self._step(step, self._with_the_fault))
        if not self._result.problems and step != DOWN:
            self._repair()
            self._must("heal", self._heal)
            self._must("run", self._life.run)
        self._result.weather = self._life.struck()
        self._step(DOWN, self._take_down)

    def _step(self, name: str, step: Callable[[], str]) -> str:
        """Take a step, and record how long it took."""
        self._say(name)
        began = time.monotonic()
        wrong = outcome(step)
        self._result.took_s[name] = round(time.monotonic() - began, 1)
        return wrong

    def _must(self, name: str, step: Callable[[], str]) -> None:
        """Take a step that must succeed, unless the drill has failed already."""
        if not self._result.problems and (wrong := self._step(name, step)):
            self._result.problems.append(f"{name}: {wrong}")

    def _with_the_fault(self) -> str:
        step = self._scenario.step
        if self._fault.first:
            self._strike(lambda: False)
        if step in self._fault.fatal and step != UP:
            return self._until_named(step)
        if step == IDLE:
            self._strike(lambda: False)
            return self._life.run() if IDLE in self._fault.names else self._heal()
        if step == REPLACEMENT:
            return self._beside(self._life.replace)
        if step == SCALE:
            self._life.nodes += 1
        return self._command(self._arguments(step))

    def _arguments(self, step: str) -> tuple[str, ...]:
        known = {UP: ("up",), SCALE: ("scale", str(self._life.nodes)), DOWN: ("down", "--yes")}
        return self._life.job("sh", "-c", "sleep 4; hostname") if step == RUN else known[step]

    def _until_named(self, step: str) -> str:
        """Do what can't succeed, and return the reason as soon as the cluster names it."""
        if step == REPLACEMENT:
            self._cluster.fault(kill={"instance_id": max(self._cluster.machines("workers"))})
        else:
            self._life.nodes += 1
            if wrong := self._life.command(*self._arguments(step)):
                return wrong
        deadline = time.monotonic() + self._deadline_s
        while not re.search(self._fault.names[step], shown := self._life.missing() + self._why(), re.IGNORECASE):
            if time.monotonic() > deadline:
                return f"no reason after {self._deadline_s:.0f} s: {shown}"
            time.sleep(1)
        return shown

    def _beside(self, step: Callable[[], str]) -> str:
        """Take a step, and strike in its midst."""
        with ThreadPoolExecutor(1) as pool:
            taken = pool.submit(step)
            if not self._fault.first:
                time.sleep(self._scenario.delay_s)
                self._strike(taken.done)
            return taken.result()

    def _command(self, arguments: tuple[str, ...]) -> str:
        """Give a command, and strike while it runs."""
        process = self._cluster.start(*arguments)
        with process, ThreadPoolExecutor(1) as pool:
            output = pool.submit(process.communicate)
            try:
                if not self._fault.first:
                    self._wait_for_the_moment(output)
                    self._send(process) if self._fault.sends else self._strike(output.done)
                _, stderr = output.result(self._deadline_s)
            except FutureTimeout:
                return f"`{arguments[0]}` did not end within {self._deadline_s:.0f} s"
            finally:
                process.kill()
        is_meant = self._fault.sends and process.returncode in _INTERRUPTED
        return verdict(arguments, 0 if is_meant else process.returncode, stderr)

    def _wait_for_the_moment(self, output: Future[Any]) -> None:
        if self._scenario.step == UP:
            while not output.done() and self._machines() < self._scenario.machines:
                time.sleep(_POLL_EVERY_S)
        time.sleep(self._scenario.delay_s)

    def _machines(self) -> int:
        try:
            return sum(len(self._cluster.machines(role)) for role in ("head", "workers"))
        except PhalanxError:
            return 0

    def _send(self, process: subprocess.Popen[str]) -> None:
        is_late = process.poll() is not None
        process.send_signal(self._fault.sends)
        self._tell("the command had ended" if is_late else f"signal {self._fault.sends} to the command")

    def _strike(self, is_over: Callable[[], bool]) -> None:
        """Cause the fault as soon as what it is about exists, unless the step is over before that."""
        deadline = time.monotonic() + _STRIKES_WITHIN_S
        while reason := self._miss():
            if is_over() or time.monotonic() > deadline:
                self._tell(f"not struck: {reason}")
                return
            time.sleep(_POLL_EVERY_S)

    def _miss(self) -> str:
        """Try to cause the fault; return why that is not possible yet."""
        try:
            self._struck = self._fault.strike(self._cluster, self._scenario)
        except PhalanxError as not_yet:
            return not_yet.message
        self._tell(self._struck.text)
        return ""

    def _tell(self, what: str) -> None:
        self._result.struck = what
        self._say(what)

    def _judge(self, wrong: str) -> None:
        """Judge the step with the fault: it succeeded, or failed for a true reason."""
        step = self._scenario.step
        if not wrong:
            if step in self._fault.fatal:
                self._result.problems.append(f"{step} succeeded in spite of: {self._result.struck}")
            return
        names = self._fault.names.get(step, "")
        told = f"{wrong} {self._why()}"
        if names and "Traceback" not in wrong and re.search(names, told, re.IGNORECASE):
            self._result.reason = wrong
        else:
            self._result.problems.append(f"{step}: {told}")

    def _why(self) -> str:
        """Return what `why` says: the cause, and the evidence."""
        done = self._cluster.phalanx("why", "--json")
        found = json.loads(done.stdout) if done.returncode == 0 else {}
        texts = [found.get("cause"), *(one["text"] for one in found.get("evidence", [])[:3])]
        return " | ".join(one[:300] for one in texts if one)

    def _repair(self) -> None:
        """Take the fault back, and give the command again that it kept from its end, as its user would."""
        if self._struck and self._cluster.endpoint():
            self._must("lift", self._lift)
        again = self._scenario.step if self._scenario.step in (UP, SCALE) else ""
        if again and (self._result.reason or self._fault.sends):
            arguments = self._arguments(again)
            self._must(f"{again} again", lambda: self._life.command(*arguments))

    def _lift(self) -> str:
        if self._struck:
            self._struck.lift()
        return ""

    def _heal(self) -> str:
        """Wait until the cluster is whole: each node is ready, none is the one that was lost, and all answer."""
        gone = self._struck.gone if self._struck else ""
        return self._life.wait_for(lambda ready: self._is_whole(ready, gone))

    def _is_whole(self, ready: dict[str, str], gone: str) -> bool:
        if len(ready) != self._life.nodes or gone in ready.values():
            return False
        try:
            return self._cluster.phalanx("exec", "--", "true").returncode == 0
        except subprocess.TimeoutExpired:
            return False

    def _take_down(self) -> str:
        """Delete the cluster, also after a failure; with the fault in it if that is its step."""
        processes = self._cluster.processes()
        if self._scenario.step == DOWN and not self._result.problems:
            self._must("down with the fault", lambda: self._command(self._arguments(DOWN)))
        self._must_be_gone(outcome(self._life.down) or self._life.left(processes))
        return ""

    def _must_be_gone(self, wrong: str) -> None:
        if wrong:
            self._result.problems.append(f"down: {wrong}")
