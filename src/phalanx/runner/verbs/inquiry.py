"""Asks jobs' runners for the load of their nodes, or what each rank does, and brings py-spy to nodes that lack it.

It needs no file of the job: only the runner's socket, so it answers while the shared directory does not.
"""

from __future__ import annotations

import json
import os
import sys
from itertools import islice
from typing import TYPE_CHECKING

from phalanx.runner import tracer
from phalanx.runner.head.runner_socket import LOAD, LOOK, answers
from phalanx.runner.head.stall import fetch_tracer, saved
from phalanx.runner.names import NO_RUNNER
from phalanx.runner.verbs.stop import meant, running

if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List

_LOAD_WITHIN_S = 3.0


def stacks(reference: str, tools: str, timeout_s: float) -> int:
    """Print a line of JSON for each node, and before them one about the job: {"asked", "ended", "problem"}.

    Of a job that does not run, print what was saved of it: the first line then has "at" and "occasion", too.

    `reference` is the job's id, the beginning or end of it, or "" for the newest that runs. A node that does not answer
    within timeout_s has no line. Return NO_RUNNER if not exactly one such job runs.
    """
    ids = running()
    chosen = meant(reference, ids)
    answers = _ask(chosen[0], timeout_s) if len(chosen) == 1 else []
    if not answers and (lines := saved(os.path.join(os.path.dirname(tools), "jobs", reference)) if reference else []):
        print("\n".join(lines))
        return 0
    if not answers:
        print(f"of the running jobs ({', '.join(ids) or 'none'}), {len(chosen)} match", file=sys.stderr)
        return NO_RUNNER
    problem = ""
    if any(answer.get("tool") == tracer.MISSING for answer in answers):
        try:
            fetch_tracer(tools)
            answers = _ask(chosen[0], timeout_s) or answers
        except OSError as error:
            problem = str(error)
    answers[0]["problem"] = problem
    for answer in answers:
        print(json.dumps(answer))
    return 0


def load(reference: str) -> int:
    """Print a line of JSON for each running job that `reference` may mean ("": all), with the load of its nodes."""
    for job_id in running():
        if job_id.startswith(reference) or job_id.endswith(reference):
            for answer in islice(_answers(job_id, LOAD, _LOAD_WITHIN_S), 1):
                print(json.dumps({**answer, "job": job_id}))
    return 0


def _ask(job_id: str, timeout_s: float) -> List[Dict[str, Any]]:
    """Return the runner's first answer, and those of the nodes that come in time; nothing without a runner.

    A node may answer twice, if another client asks, too.
    """
    answers = _answers(job_id, LOOK, timeout_s)
    first = next(answers, None)
    if first is None:
        return []
    nodes: Dict[str, Dict[str, Any]] = {}
    while not nodes.keys() >= {*first["asked"]} and (answer := next(answers, None)):
        nodes[answer["node"]] = answer
    return [first, *nodes.values()]


def _answers(job_id: str, wish: bytes, timeout_s: float) -> Iterator[Dict[str, Any]]:
    """Yield each line of JSON that the runner sends."""
    text = b""
    for part in answers(job_id, wish, timeout_s):
        *lines, text = (text + part).split(b"\n")
        yield from map(json.loads, lines)
