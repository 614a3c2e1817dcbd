"""Lists all jobs in the jobs directory, from their state files."""

from __future__ import annotations

import json
import os
from typing import Optional

from phalanx.node.validate import Invalid
from phalanx.objects import trees
from phalanx.runner.files import state as states
from phalanx.runner.files.array import array_of
from phalanx.runner.files.job_status import JobStatus
from phalanx.runner.files.schema import is_job_id
from phalanx.runner.head.settle import is_foreign, is_orphan, left_alone, settle_in_background, what_died


def list_jobs(root: str, stack: str, array: str = "") -> int:
    """Print one status per line, as JSON, newest first; without the tasks of arrays, or only those of this one.

    A job whose runner has died keeps its status, with a message, until it is settled in the background, which may
    restart it. That is done only for jobs of the cluster with this stack. A job with a damaged record is shown as
    damaged.
    """
    root = os.path.abspath(root)
    for name in sorted(filter(is_job_id, os.listdir(root)), reverse=True):
        if array_of(name) != array:
            continue
        status = _status(os.path.join(root, name), stack)
        if status:
            print(json.dumps(status.to_record()))
    return 0


def _status(directory: str, stack: str) -> Optional[JobStatus]:
    try:
        status = states.read(directory)
    except NotADirectoryError:
        return None
    except FileNotFoundError:
        _remove_if_abandoned(directory)
        return None
    except Invalid as error:
        return states.damaged(directory, error)
    if is_foreign(status, stack):
        return left_alone(status)
    if not is_orphan(status):
        return status
    settle_in_background(directory)
    return status._replace(message=f"{what_died(status)}; its processes on the nodes are being ended")


def _remove_if_abandoned(directory: str) -> None:
    """Remove the directory of a submission that was cut off, whose id no user knows; one in progress stays."""
    try:
        is_abandoned = states.is_abandoned(directory)
    except FileNotFoundError:  # it was refused meanwhile
        return
    if is_abandoned:
        trees.remove(directory)
