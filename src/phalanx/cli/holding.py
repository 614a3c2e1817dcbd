"""Keep a forwarded port, or a program behind one, until Ctrl-C; then report what was proven."""

from __future__ import annotations

import signal
import subprocess
import time
from typing import TYPE_CHECKING

import click

from phalanx.cli.console import note, say
from phalanx.counts import first_of
from phalanx.errors import ClusterError, JobError
from phalanx.jobs.job import open_job
from phalanx.jobs.relay import host_of
from phalanx.jobs.tunnel import Service, forward, require_free

if TYPE_CHECKING:
    from phalanx.cluster.cluster_record import Cluster
    from phalanx.jobs.job import Job
    from phalanx.jobs.tunnel import Ended, Program

_LOOK_EVERY_S = 0.5


def until_interrupted(connection: subprocess.Popen[bytes], service: Service | None = None) -> None:
    """Wait until Ctrl-C, SIGTERM or the end of the service. Raises ClusterError when the connection breaks."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        while connection.poll() is None:
            if service is not None and service.ended():
                return
            time.sleep(_LOOK_EVERY_S)
    except KeyboardInterrupt:
        note("")
        return
    raise ClusterError(
        "the connection broke, and the port is no longer forwarded",
        "`phalanx status` shows more.",
        code="connection-lost",
    )


def job_or_newest(cluster: Cluster, reference: str | None) -> Job | None:
    """Return the job of this name, or the newest; None if the cluster has no job yet. Raises JobError."""
    try:
        return open_job(cluster, reference)
    except JobError:
        if reference is not None:
            raise
        return None


def serve(cluster: Cluster, program: Program, port: int, path: str = "/", job: Job | None = None) -> int:
    """Start a program on the head, forward `port` to it, end both together, and return the exit code.

    The program runs in the environment of `job`, if that has one.
    """
    require_free(port)
    note(f"starting {program.name} on the head …")
    service = Service(cluster, program, job)
    try:
        host = host_of(cluster.name)
        with forward(cluster.remote(), port, service.start(), host) as connection:
            say(f"http://{host}:{port}{path}")
            note(f"Press Ctrl-C to end {program.name}.")
            until_interrupted(connection, service)
        return _report(program.name, service.end())
    except KeyboardInterrupt:
        return _report(program.name, service.end())
    finally:
        service.close()


def _report(name: str, ended: Ended) -> int:
    if ended.status is not None:
        note(click.style("error: ", fg="red", bold=True) + f"{name} ended by itself with status {ended.status}:")
        note("\n".join(f"  | {line}" for line in ended.tail))
    if ended.left:
        note(f"processes of {name} are left on the head: {first_of(ended.left)}")
    else:
        killed = f"; {ended.killed} had to be killed" if ended.killed else ""
        note(f"{name} has ended; no process of it is left on the head{killed}")
    return 1 if ended.left or ended.status else 0
