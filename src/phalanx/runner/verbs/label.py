"""Gives a job another name or other tags: through its runner, which owns its state, or after its end itself."""

from __future__ import annotations

import json
import os
import sys
import time

from phalanx.node.validate import Invalid
from phalanx.runner.files import job_record
from phalanx.runner.files import state as states
from phalanx.runner.head.runner_socket import LABEL, answers, label_in
from phalanx.runner.head.settle import is_foreign
from phalanx.runner.names import RECORD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict

    from phalanx.runner.files.job_status import JobStatus

# All of it, and one answer of the runner.
_WITHIN_S, _ANSWER_WITHIN_S = 10.0, 1.0
_LOOK_EVERY_S = 0.1


def label(directory: str, stack: str, change: str) -> int:
    """Change name and tags, as JSON, and print the new status as a JSON line; a tag without a value is removed.

    Return 1 if the job could not be changed in time, or is another cluster's.
    """
    deadline = time.monotonic() + _WITHIN_S
    try:
        while time.monotonic() < deadline:
            status = states.read(directory)
            new = _changed(status, json.loads(change))
            if not is_foreign(status, stack) and _is_done(directory, status, new):
                _keep(directory, new)
                print(json.dumps(states.read(directory).to_record()))
                return 0
            time.sleep(_LOOK_EVERY_S)
    except Invalid as error:
        print(error, file=sys.stderr)
    return 1


def _changed(status: JobStatus, change: Dict[str, Any]) -> Dict[str, Any]:
    tags = {**status.tags, **change.get("tags", {})}
    new = {"name": change.get("name", status.name), "tags": {name: value for name, value in tags.items() if value}}
    return label_in(json.dumps(new).encode())


def _is_done(directory: str, status: JobStatus, new: Dict[str, Any]) -> bool:
    if status.state.final:
        states.write(directory, status._replace(**new))
        return True
    return any(answers(status.id, LABEL + json.dumps(new).encode(), _ANSWER_WITHIN_S))


def _keep(directory: str, new: Dict[str, Any]) -> None:
    """Change the description, too, which a job that resumes this one takes over."""
    try:
        record = job_record.read(directory).to_record()
    except (OSError, Invalid):
        return
    states.write_file(os.path.join(directory, RECORD), json.dumps({**record, **new, "name": new["name"] or None}))
