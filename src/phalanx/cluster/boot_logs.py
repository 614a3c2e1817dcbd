"""The nodes' boot logs of a failed creation: saved on this machine, and their ends for the error."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from phalanx import state_files
from phalanx.cluster import cluster_record as store
from phalanx.cluster.cluster_record import Cluster

# The nodes' log streams; those of the Lambda function have other names.
_ADDRESS = re.compile(r"[0-9.]+")
_INSTANCE = re.compile("i-[0-9a-f]+")
_TAIL_LINES = 20
_MOST_TAILS = 3


def save(cluster: Cluster, logs: Mapping[str, str]) -> Path | None:
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
