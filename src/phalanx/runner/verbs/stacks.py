"""Asks a job's runner what each rank does at this moment, and brings py-spy to the nodes if they lack it.

It needs no file of the job: only the runner's socket, so it answers while the shared directory does not.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING

from phalanx.runner import tracer
from phalanx.runner.head.runner_socket import LOOK, connect_follower
from phalanx.runner.names import NO_RUNNER
from phalanx.runner.verbs.stop import running

if TYPE_CHECKING:
    from typing import Any, Dict, List

_MOST_BYTES = 1 << 16


def stacks(reference: str, tools: str, timeout_s: float) -> int:
    """Print a line of JSON for each node, and before them one about the job: {"asked", "ended", "problem"}.

    `reference` is the job's id, the beginning or end of it, or "" for the newest that runs. A node that does not answer
    within timeout_s has no line. Return NO_RUNNER if not exactly one such job runs.
    """
    ids = running()
    near = [one for one in ids if one.startswith(reference) or one.endswith(reference)]
    chosen = near if reference else ids[:1]
    answers = _ask(chosen[0], timeout_s) if len(chosen) == 1 else []
    if not answers:
        print(f"of the running jobs ({', '.join(ids) or 'none'}), {len(chosen)} match", file=sys.stderr)
        return NO_RUNNER
    problem = ""
    if any(answer.get("tool") == tracer.MISSING for answer in answers):
        try:
            tracer.fetch(tools)
            answers = _ask(chosen[0], timeout_s) or answers
        except OSError as error:
            problem = str(error)
    answers[0]["problem"] = problem
    for answer in answers:
        print(json.dumps(answer))
    return 0


def _ask(job_id: str, timeout_s: float) -> List[Dict[str, Any]]:
    """Return the runner's first answer, and those of the nodes that come in time; nothing without a runner."""
    deadline = time.monotonic() + timeout_s
    runner = connect_follower(job_id, LOOK)
    if runner is None:
        return []
    text, answers = b"", []
    with runner:
        while len(answers) < (1 + len(answers[0]["asked"]) if answers else 1):
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                break
            runner.settimeout(left_s)
            try:
                part = runner.recv(_MOST_BYTES)
            except OSError:
                break
            if not part:
                break
            *lines, text = (text + part).split(b"\n")
            answers += map(json.loads, lines)
    return answers
