"""Send what this node reads and writes over NFS to CloudWatch each minute, from the kernel's own counts."""

from __future__ import annotations

import re
import time
from typing import Any, NamedTuple, Optional

from phalanx.node import files
from phalanx.node.agent import Agent
from phalanx.node.aws_client import Aws, AwsError


class Counts(NamedTuple):
    """What the kernel has counted since the mount: bytes to and from the server, requests, and their time in ms."""

    read_bytes: int
    written_bytes: int
    reads: int
    read_ms: int
    writes: int
    write_ms: int


def watch(agent: Agent) -> None:
    """Send the metrics of the shared directory, for this process's life. One that is no NFS mount has none."""
    before: Optional[Counts] = None
    while True:
        now = counts(files.read("/proc/self/mountstats"), agent.settings.shared)
        if before and now:
            try:
                send(agent.aws, agent.settings.cluster, agent.identity.instance_id, change(before, now))
            except AwsError as error:
                agent.log.say(f"CloudWatch takes no metrics: {error}")
        before = now
        time.sleep(agent.settings.patience.metrics_every_s)


def send(aws: Aws, cluster: str, instance_id: str, values: dict[str, tuple[float, str]]) -> None:
    """Send a node's values with their units, by the metrics' names."""
    data: dict[str, Any] = {"Namespace": "phalanx"}
    names = {"Cluster": cluster, "InstanceId": instance_id}
    for n, (name, (value, unit)) in enumerate(values.items(), 1):
        one = f"MetricData.member.{n}."
        data.update({f"{one}MetricName": name, f"{one}Value": value, f"{one}Unit": unit})
        for m, (key, text) in enumerate(names.items(), 1):
            data.update({f"{one}Dimensions.member.{m}.Name": key, f"{one}Dimensions.member.{m}.Value": text})
    aws.query("monitoring", "2010-08-01", "PutMetricData", data)


def counts(mountstats: str, directory: str) -> Optional[Counts]:
    """Return the counts of an NFS mount from /proc/self/mountstats; None if the directory is none."""
    _, _, found = mountstats.partition(f" mounted on {directory} with fstype nfs")
    numbers = {name: list(map(int, rest.split())) for name, rest in _LINE.findall(found.partition("\ndevice ")[0])}
    try:
        moved, read, write = numbers["bytes"], numbers["READ"], numbers["WRITE"]
        # The fields that nfsiostat(8) shows: the last two of `bytes` are pages; the eighth of a request is its time.
        return Counts(moved[4], moved[5], read[0], read[7], write[0], write[7])
    except (KeyError, IndexError):
        return None


_LINE = re.compile(r"^\s+(bytes|READ|WRITE):\s+([\d ]+)$", re.MULTILINE)


def change(before: Counts, now: Counts) -> dict[str, tuple[float, str]]:
    """Return each metric's value and its unit in CloudWatch: what was moved, and the mean time of a request."""
    reads, writes = max(0, now.reads - before.reads), max(0, now.writes - before.writes)
    return {
        "NfsReadBytes": (max(0, now.read_bytes - before.read_bytes), "Bytes"),
        "NfsWriteBytes": (max(0, now.written_bytes - before.written_bytes), "Bytes"),
        "NfsReadTime": (max(0, now.read_ms - before.read_ms) / max(1, reads), "Milliseconds"),
        "NfsWriteTime": (max(0, now.write_ms - before.write_ms) / max(1, writes), "Milliseconds"),
    }
