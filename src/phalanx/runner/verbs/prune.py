"""Removes the directories of jobs that ended long ago, with their code and output; and says how much jobs take."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING

from phalanx.node.validate import Invalid, fields, parse
from phalanx.objects import trees
from phalanx.runner.files import job_record, record
from phalanx.runner.files import state as states
from phalanx.runner.files.array import array_of
from phalanx.runner.files.schema import is_job_id, job_id, number, text
from phalanx.runner.verbs.checkpoints import VARIABLE

if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Mapping, Optional

    from phalanx.runner.files.job_status import JobStatus
    from phalanx.runner.files.schema import Check

# A job's directory gets this name first, which no list shows: half a job is never seen.
_PRUNED = ".pruned-"
_MOST_NOTES = 10_000
_NOTE: Dict[str, Check] = {"id": job_id, "name": text, "state": text, "ended_at": number, "removed_at": number}


def prune(root: str, before: float, tags: Mapping[str, str], is_real: bool) -> int:
    """Print a JSON line for each job with these tags that ended before this time, and if `is_real` remove it.

    A job that has not ended, whose runner lives, or whose record is damaged is no such job, and neither is one whose
    directory has the checkpoints of any job, or what a link of a job that runs leads to.
    """
    root = os.path.abspath(root)
    if is_real:
        for name in os.listdir(root):
            if name.startswith(_PRUNED):
                trees.remove(os.path.join(root, name))  # what an earlier call has left
    jobs = sorted(filter(is_job_id, os.listdir(root)))
    kept = [path for name in jobs for path in _needed_by(os.path.join(root, name))]
    gone: List[Dict[str, Any]] = []
    try:
        for name in jobs:
            directory = os.path.join(root, name)
            status = _ended(directory)
            if status is None or _end_of(status) >= before or not status.has(tags):
                continue
            if any(f"{path}/".startswith(f"{directory}/") for path in kept):
                continue
            size_bytes = _size(directory)
            removed = is_real and _remove(root, name)
            facts = {"id": name, "name": status.name, "state": status.state.value, "ended_at": _end_of(status)}
            if removed:
                gone.append({**facts, "removed_at": time.time()})
            print(json.dumps({**facts, "bytes": size_bytes, "removed": removed}), flush=True)
    finally:
        _note(root, gone)
    return 0


def removed(root: str, reference: str) -> int:
    """Print the last removed job of this id, of a part of it, or of this name, as JSON; nothing if there is none."""
    for job in reversed(list(_noted(root))):
        if reference == job["name"] or job["id"].startswith(reference) or job["id"].endswith(reference):
            print(json.dumps(job))
            break
    return 0


def measure(root: str, within_s: float) -> int:
    """Print how much all jobs take, as far as that can be said in this time, and how large their file system is."""
    end, found = time.monotonic() + within_s, 0
    for directory, names in trees.walk(os.path.abspath(root)):
        found += sum(_sizes(directory, names))
        if time.monotonic() > end:
            break
    disk = os.statvfs(root)
    print(json.dumps({"bytes": found, "of_bytes": disk.f_blocks * disk.f_frsize}))
    return 0


def _note(root: str, gone: List[Dict[str, Any]]) -> None:
    """Note which jobs were removed, for a later command that names one. No failure of that counts."""
    if not gone:
        return
    try:
        lines = [json.dumps(job) for job in (*_noted(root), *gone)]
        states.write_file(_notes(root), "\n".join((*lines[-_MOST_NOTES:], "")))
    except OSError:
        pass


def _noted(root: str) -> Iterator[Dict[str, Any]]:
    """Yield the removed jobs, the oldest removal first; any job can write there."""
    try:
        lines = record.read_text(_notes(root)).splitlines()
    except (OSError, Invalid):
        return
    for line in lines:
        try:
            yield fields(_NOTE, parse(line))
        except Invalid:
            continue


def _notes(root: str) -> str:
    return os.path.join(os.path.dirname(os.path.abspath(root)), "pruned")


def _ended(directory: str) -> Optional[JobStatus]:
    """Return the status of a job that is over; None for any other, and for a task of an array that goes on."""
    root, name = os.path.split(directory)
    array = array_of(name)
    if array and os.path.isdir(os.path.join(root, array)) and _ended(os.path.join(root, array)) is None:
        return None
    try:
        status = states.read(directory)
    except (OSError, Invalid):
        return None
    return status if status.state.final and not states.runner_lives(status.runner) else None


def _end_of(status: JobStatus) -> float:
    return status.ended_at or status.submitted_at


def _needed_by(directory: str) -> List[str]:
    """Return the paths of a job's checkpoints and, unless it is over, of what its links lead to."""
    try:
        job = job_record.read(directory)
    except (OSError, Invalid):
        return []
    shared = os.path.dirname(os.path.dirname(os.path.dirname(directory)))
    paths = [job.env.get(VARIABLE, ""), *(() if _ended(directory) else job.links.values())]
    return [os.path.normpath(os.path.join(shared, path)) for path in paths if path]


def _size(directory: str) -> int:
    return sum(size for here, names in trees.walk(directory) for size in _sizes(here, names))


def _sizes(directory: str, names: List[str]) -> Iterator[int]:
    for name in names:
        status = trees.status_of(os.path.join(directory, name))
        if status is not None:
            # What it takes on the disk, without holes; of a file with several names, its share.
            yield status.st_blocks * 512 // status.st_nlink


def _remove(root: str, name: str) -> bool:
    place = os.path.join(root, _PRUNED + name)
    try:
        os.rename(os.path.join(root, name), place)
    except OSError:
        return False
    return trees.remove(place)
