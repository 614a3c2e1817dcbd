"""Lists all jobs in the jobs directory, from their state files."""

from __future__ import annotations

import json
import os
from typing import Optional

from phalanx.node.validate import Invalid
from phalanx.runner.files import state as states
from phalanx.runner.files.schema import is_job_id
from phalanx.runner.head.settle import is_foreign, is_orphan, left_alone, settle_in_background, what_died


def list_jobs(root: str, stack: str) -> int:
    """Print one JSON state per line, newest first.

    A job whose runner has died keeps its state, with a message, until it is settled in the background, which may
    restart it. That is done only for jobs of the cluster with this stack. A job with a damaged record is shown as
    damaged.
    """
    root = os.path.abspath(root)
    for name in sorted(filter(is_job_id, os.listdir(root)), reverse=True):
        state = _state(os.path.join(root, name), stack)
        if state:
            print(json.dumps(state))
    return 0


def _state(directory: str, stack: str) -> Optional[states.State]:
    try:
        state = states.read(directory)
    except NotADirectoryError:
        return None
    except FileNotFoundError:
        _remove_if_abandoned(directory)
        return None
    except Invalid as error:
        return states.damaged(directory, error)
    if is_foreign(state, stack):
        return left_alone(state)
    if not is_orphan(state):
        return state
    settle_in_background(directory)
    return {**state, "message": f"{what_died(state)}; its processes on the nodes are being ended"}


def _remove_if_abandoned(directory: str) -> None:
    """Remove the directory of a submission that was cut off, whose id no user knows; one in progress stays."""
    try:
        is_abandoned = states.is_abandoned(directory)
    except FileNotFoundError:  # it was refused meanwhile
        return
    if is_abandoned:
        from phalanx.objects import trees  # here, because it is rarely needed

        trees.remove(directory)
