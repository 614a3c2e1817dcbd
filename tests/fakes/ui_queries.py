"""Stand-ins for what `phalanx ui` shows: made clusters of any size, with the texts of a hostile job."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from typing import Any

from phalanx.errors import JobError, PhalanxError
from phalanx.ui.queries import Queries, _shown

HOSTILE = "<img src=x onerror=alert(1)><script>window.pwned=1</script>\x1b[2J\x07\u202egpj.exe\"'&lt;"
JOB = "261127-000000-00a1b2"
OTHER = "261126-000000-00a1b2"
BEGAN_S = time.time() - 300
_LOAD = {"cores": 3.5, "memory": 2e9, "processes": 4, "node_cores": 5.0, "node_cores_total": 8, "node_memory": 4e9}
_LOAD |= {"node_memory_total": 16e9, "received": 1e6, "sent": 1e6, "read": 0, "written": 0, "gpus": 0, "gpu_busy": 0}


class MadeQueries(Queries):
    """One cluster `demo` with so many nodes, and a job whose texts are `text`. `stopped` are the jobs that it stopped.

    `output`, a program in Python, writes what `phalanx logs` would print. `wrong` fails everything about the job.
    """

    def __init__(self, nodes: int = 4, text: str = "train", output: str = "") -> None:
        self.nodes, self.text, self.output = nodes, text, output
        self.stopped: list[str] = []
        self.curves_ = {text: [[step, 1 / (1 + step)] for step in range(20)]}
        self.events_ = [_event("HeadGroup", "CREATE_COMPLETE"), _event("Ready1", "CREATE_FAILED", text)]
        self.plan_: dict[str, Any] | None = None
        self.wrong: PhalanxError | None = None
        self.silent: set[str] = set()
        self.problems: list[str] = []
        self.state = "CREATE_COMPLETE"

    def clusters(self) -> dict[str, Any]:
        row = {
            "cluster": "demo",
            "state": "CREATE_COMPLETE",
            "nodes": self.nodes,
            "cost_text": "nothing",
            "cloud": "local",
        }
        row |= {"region": "local", "lease_left_text": "", "age_text": "2.0 s", "age_s": 2, "lease_left_s": None}
        kept = [{"cluster": "gone", "id": JOB, "name": self.text}]
        return _shown({"clusters": [] if self.plan_ else [row], "kept": kept, "failed": ["broken"]})

    def cluster(self, name: str) -> dict[str, Any]:
        members = [self._member(number) for number in range(1, self.nodes + 1)]
        state = {"state": self.state, "nodes": members, "requested": self.nodes, "cost_text": "$0.52 so far"}
        state |= {"lease_text": "", "removal_text": "", "stopped": False, "ended": "", "cloud": "local", "region": "r"}
        state |= {"members": members, "missing": [{"name": "worker9", "reason": self.text}]}
        loads = [{"job": JOB, "age_s": 1.0, "peak_memory": 3e9, **_LOAD, "node": one["name"]} for one in members]
        return _shown(
            {
                "name": name,
                "state": state,
                "jobs": [self._job(), {**self._job(), "id": OTHER}],
                "loads": loads,
                "load": "",
                "problems": [],
            }
        )

    def why(self, name: str) -> dict[str, Any]:
        return _shown({"cluster": name, "cause": None, "advice": None, "evidence": []})

    def job(self, name: str, job: str) -> dict[str, Any]:
        self._require(job)
        loads = [{"node": "deeplearning-worker1", "age_s": 1.0, "peak_memory": 3e9, "gpus_text": "", **_LOAD}]
        return _shown({"job": self._job(), "loads": loads, "problems": []})

    def stacks(self, name: str, job: str) -> dict[str, Any]:
        frames = [["read", "data.py:88"], [self.text, "train.py:60"]]
        group = {"ranks": "rank 3", "does": "waits", "place": self.text, "nodes": "n1", "frames": frames, "why": ""}
        return _shown({"groups": [group], "ended": "", "silent": {}})

    def stop(self, name: str, job: str) -> dict[str, Any]:
        self.stopped.append(job)
        return {"job": self._job()}

    def curves(self, name: str, job: str, others: Sequence[str] = ()) -> dict[str, Any]:
        self._require(job)
        charts = [
            {"file": "runs", "name": name, "lines": [{"label": one, "points": points} for one in (job, *others)]}
            for name, points in self.curves_.items()
        ]
        return _shown({"charts": charts, "problems": self.problems})

    def events(self, name: str) -> dict[str, Any]:
        return _shown({"events": self.events_})

    def plan(self) -> dict[str, Any]:
        return _shown({"plan": self.plan_, "problems": [self.text] if self.plan_ else []})

    def load(self, name: str, job: str, node: str) -> dict[str, Any]:
        samples = [{**_LOAD, "time": BEGAN_S + at, **_sample(at)} for at in range(0, 300, 2)]
        return {"node": node, "samples": [] if self.problems else samples, "problems": self.problems}

    def log(self, name: str, job: str, rank: str = "", find: str = "", is_whole: bool = False) -> list[str]:
        return [sys.executable, "-c", self.output]

    def _require(self, job: str) -> None:
        if self.wrong:
            raise self.wrong
        if job != JOB:
            raise JobError(f"job {job} is not on cluster demo: its directory is gone", code="no-job")

    def _member(self, number: int) -> dict[str, Any]:
        name = f"deeplearning-worker{number}"
        state = "silent" if name in self.silent else "ready"
        return {"name": name, "address": "10.0.0.1", "role": "worker", "state": state, "instance_id": f"i-{number}"}

    def _job(self) -> dict[str, Any]:
        is_over = bool(self.stopped)
        job = {
            "id": JOB,
            "name": self.text,
            "state": "stopped" if is_over else "running",
            "command_text": f"python train.py {self.text}",
        }
        job |= {
            "message": self.text if "<" in self.text else "",
            "processes": 4,
            "launcher": "mpi",
            "submitted_at": BEGAN_S,
            "started_at": BEGAN_S,
        }
        job |= {
            "ended_at": BEGAN_S + 5 if is_over else None,
            "took_text": "5.0 s",
            "restarts": 0,
            "attempt": 0,
            "load": [],
        }
        job |= {"tail": [], "nodes": [], "verified": False, "final": is_over, "ranks": {"deeplearning-worker1": 4}}
        return job


def _event(what: str, status: str, reason: str = "") -> dict[str, Any]:
    kind = "AutoScaling::AutoScalingGroup"
    return {"time": BEGAN_S, "what": what, "type": kind, "status": status, "reason": reason, "cause": bool(reason)}


def _sample(at_s: int) -> dict[str, float]:
    return {"cores": 3.5 + math.sin(at_s / 9), "memory": 2e9 + 5e6 * at_s, "received": 4e7 + 1e7 * math.sin(at_s / 4)}
