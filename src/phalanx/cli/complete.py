"""Shell completion of nodes, jobs and commands. It never waits long or prints an error."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from phalanx.cli.options import load_cluster
from phalanx.errors import PhalanxError
from phalanx.jobs.job import list_jobs
from phalanx.node.workers_group import worker_numbers

if TYPE_CHECKING:
    from phalanx.cluster.cluster_record import Cluster

_JOBS_WITHIN_S = 1.5


def files(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Have the shell complete files of this machine, as for any program."""
    return [CompletionItem(incomplete, type="file")]


def nodes(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete head, worker2 and so on, from the cluster's record."""
    cluster = _cluster(context)
    if cluster is None:
        return []
    workers = (f"worker{number}" for number in worker_numbers(cluster.nodes))
    names = [("head", cluster.head_address), *((worker, "") for worker in workers)]
    return _matching(names, incomplete)


def jobs(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete names and ids of jobs, if a connection to the head is open; opening one would take too long."""
    cluster = _cluster(context)
    if cluster is None or not cluster.ready or not cluster.remote().connected():
        return []
    found: list[tuple[str, str]] = []
    # In a thread, so that a head that has just died does not block the shell.
    query = threading.Thread(target=_list, args=(cluster, found, incomplete), daemon=True)
    query.start()
    query.join(_JOBS_WITHIN_S)
    return _matching(found, incomplete)


def _list(cluster: Cluster, found: list[tuple[str, str]], incomplete: str) -> None:
    array = incomplete.rpartition(".")[0]
    try:
        jobs = list_jobs(cluster)
        whole = next((job.id for job in jobs if array and job.tasks and array in (job.id, job.name)), "")
        tasks = list_jobs(cluster, whole) if whole else []
    except PhalanxError:
        return
    # Only names that need no quotes in a shell.
    names = {
        job.name: f"the newest is {job.state.value}" for job in reversed(jobs) if shlex.quote(job.name) == job.name
    }
    found += names.items()
    found += ((f"{array}.{task.id.rpartition('.')[2]}", task.state.value) for task in reversed(tasks))
    found += ((job.id, f"{job.state.value} {job.name if job.name in names else ''}".strip()) for job in jobs)


def _cluster(context: click.Context) -> Cluster | None:
    try:
        return load_cluster(context.params.get("name"), context.params.get("file"))
    except PhalanxError:
        return None


def _matching(found: Iterable[tuple[str, str]], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(value, help=text or None) for value, text in found if value.startswith(incomplete)]
