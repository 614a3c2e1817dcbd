"""A creation that failed: its boot logs and evidence are saved on this machine, and the rest is removed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from phalanx import state_files
from phalanx.cluster import causes, shortage
from phalanx.cluster import cluster_record as store
from phalanx.cluster.cluster_record import Cluster
from phalanx.cluster.deletion import Deletion, file_systems_of
from phalanx.cluster.evidence import collect, keep
from phalanx.cluster.stack import Creation, Progress
from phalanx.cluster.why import Diagnosis, Evidence, diagnose
from phalanx.errors import CloudError, NoCapacity, StackFailed

# The nodes' log streams; those of the Lambda function have other names.
_ADDRESS = re.compile(r"[0-9.]+")
_INSTANCE = re.compile("i-[0-9a-f]+")
_TAIL_LINES = 20
_MOST_TAILS = 3


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
    kind = NoCapacity if shortage.is_shortage(failure) else StackFailed
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
