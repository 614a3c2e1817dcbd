"""What the pages show: the answers of the functions behind `ls`, `status`, `nodes`, `jobs`, `top`, `stacks` and `why`.

Several pages share an answer for a few seconds. A part that fails is a sentence, and the other parts are still shown.
"""

from __future__ import annotations

import functools
import json
import re
import shlex
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from phalanx import connection
from phalanx.aws import stacks
from phalanx.cli import cost_text, ls, nodes, planning, status, top, why
from phalanx.cli.console import duration
from phalanx.cli.options import DEFAULT_FILE
from phalanx.cli.terminal import one_line
from phalanx.cluster import evidence
from phalanx.cluster.cluster_record import Cluster
from phalanx.cluster.stack import describe_cause
from phalanx.errors import ClusterError, JobError, PhalanxError
from phalanx.jobs import toolbox
from phalanx.jobs.job import Job, JobStatus, list_jobs
from phalanx.jobs.loads import NodeLoad, gpus_in_words, in_words, loads_of, total
from phalanx.jobs.rank_stacks import named, take
from phalanx.node.validate import Invalid
from phalanx.plan import plan_text
from phalanx.plan.not_checked import not_checked
from phalanx.runner.files import ring
from phalanx.runner.head.load_book import RINGS
from phalanx.spec.spec_load import load
from phalanx.state_files import known, state_directory
from phalanx.ui import drawing
from phalanx.ui.curves import Curves

if TYPE_CHECKING:
    from phalanx.aws.model import StackEvent
    from phalanx.ui.drawing import Chart

T = TypeVar("T")
_FRESH_S, _MONEY_FRESH_S = 1.0, 30.0
_MOST_OPEN = 16
_MOST_JOBS = 200
_MOST_OTHERS, _MOST_EVENTS = 3, 200
_LAST_LINES = 1000
_KEPT = re.compile(r"(?P<id>[\w-]{1,64})(?:\.(?P<name>.{1,64}))?\.log")
# `phalanx …` from where this process has it, and never from the current directory.
_PHALANX = "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); from phalanx.cli import main; main()"
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,252}")


class Queries:
    """The facts of all clusters that this machine knows. The methods wait for answers: call them in threads."""

    def __init__(self) -> None:
        self._answers = _Answers()
        self._open: OrderedDict[tuple[str, str], Curves] = OrderedDict()
        self._events: dict[str, list[StackEvent]] = {}
        self._guard = threading.Lock()

    def clusters(self) -> dict[str, Any]:
        """Return the clusters, each as `ls` has it, and the jobs whose output was kept of clusters that are gone."""
        return self._answers.get("clusters", _clusters)

    def cluster(self, name: str) -> dict[str, Any]:
        """Return state, nodes and jobs of a cluster, and a sentence for each part that is not known."""
        self._cluster(name)  # an unknown name is not a part that fails
        with ThreadPoolExecutor(max_workers=3) as pool:
            asked = (
                pool.submit(_part, lambda: self._state(name)),
                pool.submit(_part, lambda: self._jobs(name)),
                pool.submit(_part, lambda: self._loads(name)),
            )
            (state, *first), (jobs, *second), (loads, *third) = (one.result() for one in asked)
        return {
            "name": name,
            "state": state,
            "jobs": None if jobs is None else [_job(job) for job in jobs[:_MOST_JOBS]],
            "loads": [top.as_record(one) for one in loads or []],
            "load": in_words(total(loads)) if loads else "",
            "problems": list(dict.fromkeys(filter(None, (*first, *second, *third)))),
        }

    def why(self, name: str) -> dict[str, Any]:
        """Return what is wrong with a cluster, as `why` has it. Raises PhalanxError."""
        cluster = self._cluster(name)
        return why.as_dict(name, why.diagnosed(name, cluster.cloud, cluster.region))

    def job(self, name: str, job: str) -> dict[str, Any]:
        """Return the status of a job and the load of its nodes. Raises PhalanxError."""
        found = self._job(name, job)
        loads, problem = _part(lambda: self._loads(name)) if not found.state.final else (None, "")
        own = [top.as_record(one) | {"gpus_text": gpus_in_words(one.load)} for one in loads or [] if one.job == job]
        return {"job": _job(found), "loads": own, "problems": [problem] if problem else []}

    def stacks(self, name: str, job: str) -> dict[str, Any]:
        """Return what the ranks do, in groups that do the same. Raises PhalanxError."""
        found = take(self._cluster(name), job)
        groups = [
            {
                "ranks": named(group),
                "does": group[0].does,
                "place": group[0].place,
                "nodes": ", ".join(dict.fromkeys(one.node for one in group)),
                "frames": [[frame.function, frame.place] for frame in group[0].frames],
                "why": "; ".join(sorted({one.why for one in group if one.why})),
            }
            for group in found.groups()
        ]
        ended = named(found.ended) if found.ended else ""
        return _shown({"groups": groups, "ended": ended, "silent": found.silent})

    def stop(self, name: str, job: str) -> dict[str, Any]:
        """Stop a job, and return its status. Raises PhalanxError."""
        stopped = Job(self._cluster(name), job).stop()
        self._answers.forget(("jobs", name))
        return {"job": _job(stopped)}

    def curves(self, name: str, job: str, others: Sequence[str] = ()) -> dict[str, Any]:
        """Return charts of a job's scalars, and of other jobs' beside them. Raises PhalanxError."""
        own = self._read_curves(name, job)
        found, problems = {own["label"]: own["curves"]}, [*own["problems"]]
        for other in others[:_MOST_OTHERS]:
            read, problem = _part(functools.partial(self._read_curves, name, other))
            if read:
                found.setdefault(read["label"], read["curves"])
            problems += read["problems"] if read else [problem]
        shown = [one for one in drawing.charts(found) if own["label"] in one.lines]
        return {"charts": [*map(_chart, shown[: drawing.MOST_CHARTS])], "problems": problems}

    def events(self, name: str) -> dict[str, Any]:
        """Return the newest events of a cluster's stack, or of its last creation that failed. Raises PhalanxError."""
        if name not in known() and (kept := evidence.kept(name)):
            return _shown({"events": [*map(_event, kept.events)]})
        cluster = self._cluster(name)
        return self._answers.get(("events", name), lambda: self._read_events(cluster))

    def plan(self) -> dict[str, Any]:
        """Return what `up` would create by this directory's phalanx.yaml, with the price; None where it need not."""
        return self._answers.get("plan", _plan, _MONEY_FRESH_S)

    def load(self, name: str, job: str, node: str) -> dict[str, Any]:
        """Return the load of a job on a node in the last hour, from its ring. Raises PhalanxError."""
        if not _NODE.fullmatch(node):
            raise ClusterError(f"'{node}' can't be the name of a node", code="no-node")
        cluster = self._cluster(name)
        path = shlex.quote(f"{Job(cluster, job).directory}/{RINGS}/{node}.ring")
        command = f"[ ! -f {path} ] || head -c {ring.HOUR_BYTES} {path}"
        data = toolbox.run(cluster.remote(), cluster.shared, command, timeout_s=30.0).stdout
        try:
            samples = ring.parsed(data, f"{node}.ring")[0] if data else []
        except Invalid as error:
            return {"node": node, "samples": [], "problems": [f"{error}."]}
        return {"node": node, "samples": [{"time": at_s, **load._asdict()} for at_s, load in samples], "problems": []}

    def log(self, name: str, job: str, rank: str = "", find: str = "", is_whole: bool = False) -> list[str]:
        """Return the command that prints the output of a job, which follows it where the cluster exists."""
        follow = ["--follow"] if name in known() and not is_whole else []
        last = [] if find or is_whole else ["--tail", str(_LAST_LINES)]
        only = ["--rank", rank] if rank else []
        start = [sys.executable, "-I", "-c", _PHALANX, json.dumps(sys.path)]
        return [*start, "logs", "-c", name, "--timestamps", *follow, *last, *only, "--", job]

    def _cluster(self, name: str) -> Cluster:
        return connection.attached(Cluster.load(name))

    def _state(self, name: str) -> dict[str, Any]:
        """Return what AWS knows of a cluster: what it costs and how long it lasts, which takes longer, a while ago."""
        cluster = self._cluster(name)
        money = self._answers.get(("money", name), lambda: _money(cluster), _MONEY_FRESH_S)
        return self._answers.get(("state", name), lambda: _state(cluster, money))

    def _curves(self, name: str, job: str) -> Curves:
        """Return what was read of a job's files so far; that of jobs that were looked at long ago is forgotten."""
        cluster = self._cluster(name)
        with self._guard:
            found = self._open.setdefault((name, job), Curves(cluster, Job(cluster, job)))
            self._open.move_to_end((name, job))
            while len(self._open) > _MOST_OPEN:
                self._open.popitem(last=False)
        return found

    def _read_curves(self, name: str, job: str) -> dict[str, Any]:
        status_now = self._job(name, job)
        label = one_line(f"{status_now.name} ({job})" if status_now.name else job)
        read = self._answers.get(("curves", name, job), lambda: self._curves(name, job).read(status_now))
        return {"label": label, **read}

    def _read_events(self, cluster: Cluster) -> dict[str, Any]:
        """Read the events since the last call. AWS sends the newest first, so that is one page as a rule."""
        found = self._events.setdefault(cluster.stack_id, [])
        if cluster.stack_id:
            found += stacks.events(cluster.aws(), cluster.stack_id, found[-1].event_id if found else None)
            del found[:-_MOST_EVENTS]
        return _shown({"events": [*map(_event, found)]})

    def _jobs(self, name: str) -> list[JobStatus]:
        cluster = self._cluster(name)
        return self._answers.get(("jobs", name), lambda: list_jobs(cluster) if cluster.ready else [])

    def _loads(self, name: str) -> list[NodeLoad]:
        """Return the loads of running jobs; nothing is asked where none runs."""
        if all(job.state.final for job in self._jobs(name)):
            return []
        cluster = self._cluster(name)
        return self._answers.get(("loads", name), lambda: loads_of(cluster))

    def _job(self, name: str, job: str) -> JobStatus:
        for found in self._jobs(name):
            if found.id == job:
                return found
        raise JobError(f"job {job} is not on cluster {name}: its directory is gone", code="no-job")


class _Answers:
    """Answers that were given a moment ago, and a lock for each question, so that it is asked once at a time."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[object, threading.Lock] = {}
        self._known: dict[object, tuple[float, Any]] = {}

    def get(self, question: object, ask: Callable[[], T], fresh_s: float = _FRESH_S) -> T:
        with self._guard:
            lock = self._locks.setdefault(question, threading.Lock())
        with lock:
            at_s, answer = self._known.get(question, (-fresh_s, None))
            if time.monotonic() - at_s >= fresh_s:
                answer = ask()
                self._known[question] = time.monotonic(), answer
            return answer

    def forget(self, question: object) -> None:
        self._known.pop(question, None)


def _part(ask: Callable[[], Any]) -> tuple[Any, str]:
    """Return an answer, or None and the reason."""
    try:
        return ask(), ""
    except (PhalanxError, OSError) as error:
        message = error.message if isinstance(error, PhalanxError) else str(error)
        return None, one_line(f"{message[:1].upper()}{message[1:]}.")


def _chart(chart: Chart) -> dict[str, Any]:
    lines = [{"label": label, "points": points} for label, points in chart.lines.items()]
    return {"name": chart.name, "file": chart.place, "lines": lines}


def _event(one: StackEvent) -> dict[str, Any]:
    """Return an event of a stack; of a failure, with its cause, which a node may have sent."""
    reason = describe_cause(one) if one.is_cause else one.reason if one.failed else ""
    kind = one.resource_type.removeprefix("AWS::")
    return {"time": one.time_s, "what": one.logical_id, "type": kind, "status": one.status, "reason": reason} | {
        "cause": one.is_cause
    }


def _plan() -> dict[str, Any]:
    path = Path(DEFAULT_FILE)
    if not path.exists():
        return {"plan": None, "problems": []}
    spec, problem = _part(lambda: load(path))
    found = None
    if spec and spec.name not in known():
        found, problem = _part(lambda: planning.planned(path, ends_idle=False))
    if found is None:
        return {"plan": None, "problems": [*filter(None, [problem])]}
    said = [*plan_text.warnings(found), *(f"not checked: {one}" for one in not_checked(found))]
    return _shown({"plan": {"file": str(path), "rows": plan_text.describe(found)}, "problems": said})


def _clusters() -> dict[str, Any]:
    names = known()
    with ThreadPoolExecutor(max_workers=8) as pool:
        rows = list(pool.map(ls.row, names))
    failed = [name for name in evidence.failed_creations() if name not in names]
    return _shown({"clusters": [{**row, **_in_words(row)} for row in rows], "kept": _kept(names), "failed": failed})


def _in_words(row: dict[str, Any]) -> dict[str, str]:
    times = {name: row[f"{name}_s"] for name in ("age", "lease_left", "removal_left")}
    shown = {f"{name}_text": "" if value is None else duration(value) for name, value in times.items()}
    cost = cost_text.whole(row["cloud"], row["cost"], row["state"] == ls.STOPPED) if row["cost"] else "not known"
    return {**shown, "cost_text": cost}


def _kept(names: list[str]) -> list[dict[str, str]]:
    """Return the jobs of which this machine has fetched output, of clusters that are gone."""
    files = sorted((state_directory() / "logs").glob("*/*.log"), reverse=True)
    found = [(path.parent.name, _KEPT.fullmatch(path.name)) for path in files if path.parent.name not in names]
    kept = [{"cluster": name, "id": one["id"], "name": one["name"] or ""} for name, one in found if one]
    return kept[:_MOST_JOBS]


def _state(cluster: Cluster, money: dict[str, Any]) -> dict[str, Any]:
    """Return what `status` and `nodes` say of the stack and its nodes."""
    stack, roster = status.read_state(cluster)
    shown = None if money["stopped"] else roster
    members = nodes.rows(shown, ()) if shown else []
    return _shown({**status.describe(cluster, stack.status, shown), **money, "members": members})


def _money(cluster: Cluster) -> dict[str, Any]:
    """Return what a cluster costs, and when its lease ends or it is removed."""
    stack, _ = status.read_state(cluster)
    left, cost = status.time_left(cluster, stack), status.cost(cluster, stack)["cost"]
    lease, removal = left["lease_left_s"], left["removal_left_s"]
    return {
        "cost_text": cost_text.whole(cluster.cloud, cost, left["stopped"]),
        "lease_text": "" if lease is None else duration(lease),
        "removal_text": "" if removal is None else duration(removal),
        "stopped": left["stopped"],
        "ended": left["ended"],
    }


def _job(job: JobStatus) -> dict[str, Any]:
    """Return a job as `jobs` has it, with its command as text."""
    times = {"took_text": duration(job.duration_s(time.time())) if job.started_at else ""}
    return _shown({**job.to_json(), "command_text": shlex.join(job.command), **times, "final": job.state.final})


def _shown(value: Any) -> Any:
    """Escape what would reorder or hide text on a page, in all texts of an answer: most come from nodes and jobs."""
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, dict):
        return {one_line(str(key)): _shown(one) for key, one in value.items()}
    return [_shown(one) for one in value] if isinstance(value, (list, tuple)) else value
