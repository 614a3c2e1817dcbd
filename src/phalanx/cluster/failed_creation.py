"""A creation that failed: its boot logs and evidence are saved on this machine, and the rest is removed.

Also what an earlier attempt, which nobody cleaned up, has left under the name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from phalanx import state_files
from phalanx.aws import change_sets, stacks
from phalanx.aws.model import StackState
from phalanx.cluster import causes
from phalanx.cluster import cluster_record as store
from phalanx.cluster.cluster_record import Cluster
from phalanx.cluster.deletion import Deletion, file_systems_of
from phalanx.cluster.evidence import collect, keep
from phalanx.cluster.stack import Creation, Note, Progress, Stack, require_ours
from phalanx.cluster.why import Diagnosis, Evidence, diagnose
from phalanx.errors import CloudError, ClusterError, NoCapacity, StackFailed

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws

# The nodes' log streams; those of the Lambda function have other names.
_ADDRESS = re.compile(r"[0-9.]+")
_INSTANCE = re.compile("i-[0-9a-f]+")
_TAIL_LINES = 20
_MOST_TAILS = 3
_WAIT = "Wait until its status changes, or remove it with `phalanx down`."
_UNDO = "`aws cloudformation continue-update-rollback --stack-name {}` takes it back; or remove it with `phalanx down`."
_NOTHING_TO_LOSE = frozenset({"ROLLBACK_COMPLETE", "ROLLBACK_FAILED", "CREATE_FAILED", "DELETE_FAILED"})
# EC2's and Auto Scaling's words (docs/aws-behaviour.md 2.17, 2.18). Quotas and denials are no shortage: they hold in
# every zone, and the user should hear of them.
_SHORTAGE = re.compile(
    r"do not have sufficient \S+ capacity|no Spot capacity available|Insufficient capacity|UnfulfillableCapacity"
    r"|Insufficient(Instance|Host|ReservedInstance)Capacity"
)
_REASONS = " are needed: "


def clean_up(cluster: Cluster, creation: Creation) -> Iterator[Progress]:
    """Save the boot logs, delete the stack, and raise StackFailed with the reason."""
    logs, failure = creation.boot_logs(), creation.failure()
    saved = save_logs(cluster, logs)
    diagnosis = _diagnose(cluster, creation, failure, logs)
    reason = "\n".join([f"cluster {cluster.name} did not come up:", failure, *tails(logs, failure)])
    try:
        # Nobody has used its file systems yet.
        yield from Deletion(creation.stack, file_systems_of(creation.stack)).steps()
    except CloudError as error:
        left = f"Not everything that it created could be deleted: {error.message}"
        raise StackFailed(f"{reason}\n\n{left}", error.hint) from error
    cluster.forget(keep_logs=True)
    hint = "Everything was rolled back and the stack was deleted: nothing is left, and the name is free."
    if diagnosis.cause not in (None, causes.UNKNOWN):
        hint = f"The cause: {diagnosis.cause.name}. {diagnosis.cause.advice}\n{hint}"
    kind = NoCapacity if is_shortage(failure) else StackFailed
    raise kind(reason, f"{hint}\nBoot logs: {saved}" if saved else hint)


def _diagnose(cluster: Cluster, creation: Creation, failure: str, logs: Mapping[str, str]) -> Diagnosis:
    """Name the cause, and store its evidence for `phalanx why`: the stack is about to be deleted."""
    found = Evidence(verdict=failure, logs=logs)
    if creation.state is not None:
        found = replace(collect(creation.stack.cloud, creation.state, failure, with_logs=False), logs=logs)
    keep(cluster, found)
    return diagnose(found)


def save_logs(cluster: Cluster, logs: Mapping[str, str]) -> Path | None:
    """Save the logs in the cluster's directory, a file for each stream; return the directory, or None without logs."""
    directory = cluster.directory / store.BOOT_LOGS
    for stream, text in logs.items():
        state_files.write_private(
            directory / f"{re.sub(r'[^A-Za-z0-9.-]+', '_', stream)}.log", text + "\n", lasts=False
        )
    return directory if logs else None


def tails(logs: Mapping[str, str], reason: str) -> list[str]:
    """Return the last lines of the boot logs of the nodes that the reason names; if it names none, of the first few."""
    nodes = sorted(filter(_ADDRESS.fullmatch, logs))
    named = [node for node in nodes if set(_INSTANCE.findall(reason)) & set(_INSTANCE.findall(logs[node]))]
    shown: list[str] = []
    for node in (named or nodes)[:_MOST_TAILS]:
        shown += ["", f"--- the end of the boot log of {node}:", *logs[node].splitlines()[-_TAIL_LINES:]]
    return shown


def clear_the_name(cloud: Aws, name: str) -> Iterator[Progress | Note]:
    """Remove what an earlier attempt left under the name, unless it is ready or being created."""
    found = stacks.describe(cloud, name)
    if found is None:
        if _clean_up_forgotten(cloud, name):
            yield Note(f"the stack of cluster {name} was deleted since; making it again")
        return
    require_ours(found)
    if found.in_review:
        yield Note(f"`phalanx plan --on-aws` left an empty stack {found.name}; removing it first")
        change_sets.remove_empty_stack(cloud, found.stack_id)
        return
    if found.ready or found.creating or found.updating:
        return
    stack = Stack(cloud, found.name, found.stack_id)
    yield from _wait_until_idle(found, stack)
    yield Note(f"an earlier attempt left stack {found.name} as {found.status}; removing its remains first")
    yield from Deletion(stack).steps()


def _wait_until_idle(found: StackState, stack: Stack) -> Iterator[Progress | Note]:
    if found.status == "ROLLBACK_IN_PROGRESS":
        yield Note(f"an earlier attempt to create {found.name} is being rolled back; waiting for it")
        yield from Creation(stack).steps()
    elif found.status not in _NOTHING_TO_LOSE and not found.status.startswith("DELETE"):
        raise CloudError(
            f"stack {found.name} is {found.status}, and `up` can't continue from that state",
            _UNDO.format(found.name) if found.status == "UPDATE_ROLLBACK_FAILED" else _WAIT,
            code="stack-stuck",
        )


def is_shortage(failure: str) -> bool:
    """Whether a creation failed only for a lack of capacity: every missing node is missing for that reason."""
    _, found, reasons = failure.rpartition(_REASONS)
    return all(_SHORTAGE.search(reason) for reason in (reasons if found else failure).split("; "))


def _clean_up_forgotten(cloud: Aws, name: str) -> bool:
    """Delete what the deletion of this machine's cluster left beside its data; return whether its stack was deleted."""
    try:
        record = Cluster.load(name)
    except ClusterError:
        return False
    state = stacks.describe(cloud, record.stack_id) if record.stack_id else None
    if state is None or state.status != "DELETE_COMPLETE":
        return False
    stack = Stack(cloud, name, state.stack_id)
    Deletion(stack).delete_evidence(stacks.resources(cloud, state.stack_id))
    return True
