"""phalanx plot: draw the curves of jobs, in the terminal or as a picture."""

from __future__ import annotations

import fnmatch
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from phalanx.cli import complete
from phalanx.cli.console import note, print_json, say
from phalanx.cli.options import cluster_option, debug_option, json_option, load_cluster
from phalanx.cli.terminal import one_line
from phalanx.errors import JobError, PhalanxError
from phalanx.jobs.job import open_job
from phalanx.ui import drawing
from phalanx.ui.curves import Curves, read_directory

if TYPE_CHECKING:
    from phalanx.cluster.cluster_record import Cluster

_WIDEST = 100


@click.command("plot")
@cluster_option
@click.option("--curve", "names", multiple=True, metavar="NAME", help="Only this curve, or 'loss*'. Repeatable.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write to this path. Here: a PNG.")
@json_option
@debug_option
@click.argument("jobs", nargs=-1, metavar="[JOB]...", shell_complete=complete.jobs)
def command(
    name: str | None,
    file: Path | None,
    names: tuple[str, ...],
    output: Path | None,
    as_json: bool,
    jobs: tuple[str, ...],
) -> int:
    """Draw the curves of JOB (default: the newest): scalars that it writes for TensorBoard, or into CSV files.

    Several jobs are drawn side by side: curves of the same name are in one chart. These are the curves of
    `phalanx ui`. The terminal shows them as text. A picture needs `pip install 'phalanx[plot]'`, which is matplotlib.

    A JOB with a slash, such as ./runs, is a directory on this machine, with files that `phalanx get` has fetched. It
    needs no cluster.

    \b
    Examples:
      phalanx plot
      phalanx plot 261121-0755 261121-0812 --curve 'loss*'
      phalanx plot small large -o compared.png
      phalanx plot ./fetched --json | jq '.curves[].name'
    """
    chosen = list(dict.fromkeys(jobs)) or [""]
    if len(chosen) > len(drawing.MARKS):
        raise click.UsageError(f"{len(chosen)} jobs are too many for a chart: choose {len(drawing.MARKS)}")
    found, problems = _read(name, file, chosen, names)
    for problem in problems:
        note(problem)
    charts = drawing.charts(found)
    if not charts:
        raise JobError(
            f"there is no {'such ' * bool(names)}curve in {', '.join(found)}",
            "A job's curves are the scalars that it writes for TensorBoard, or into a CSV file with a header.",
            code="no-curves",
        )
    if len(charts) > drawing.MOST_CHARTS:
        note(f"{len(charts) - drawing.MOST_CHARTS} more curves are left out: --curve chooses")
    if output:
        _write(output, charts[: drawing.MOST_CHARTS])
    if as_json:
        curves = [{"job": label, **one} for label, curves in found.items() for one in curves]
        print_json({"curves": curves, "problems": problems})
    elif not output:
        for chart in charts[: drawing.MOST_CHARTS]:
            for line in drawing.as_text(chart, min(_WIDEST, shutil.get_terminal_size().columns)):
                say(line)
            say()
    return 0


def _read(
    name: str | None, file: Path | None, chosen: list[str], names: tuple[str, ...]
) -> tuple[dict[str, list[dict[str, Any]]], list[str]]:
    """Return the curves of these names of each job or directory by its label, and what could not be read."""
    found, problems, cluster = {}, [], None
    for one in chosen:
        if os.sep in one:
            label, read = one_line(one), read_directory(_directory(one))
        else:
            cluster = cluster or load_cluster(name, file)
            label, read = _of_job(cluster, one)
        problems += read["problems"]
        found[label] = [
            curve for curve in read["curves"] if not names or any(fnmatch.fnmatchcase(curve["name"], n) for n in names)
        ]
    return found, problems


def _of_job(cluster: Cluster, reference: str) -> tuple[str, dict[str, Any]]:
    job = open_job(cluster, reference or None)
    status = job.status()
    label = f"{status.name} ({job.id})" if status.name else job.id
    return one_line(label), Curves(cluster, job).read_whole(status)


def _directory(path: str) -> Path:
    if not Path(path).is_dir():
        raise JobError(f"{path} is no directory on this machine", "Name a job without a slash.", code="no-directory")
    return Path(path)


def _write(output: Path, charts: list[drawing.Chart]) -> None:
    try:
        picture = drawing.as_picture(charts)
    except ModuleNotFoundError as error:
        hint = "pip install 'phalanx[plot]'"
        raise PhalanxError(f"`phalanx plot --output` needs {error.name}", hint, code="extra-missing") from error
    output.write_bytes(picture)
    note(f"Wrote {len(picture):,} bytes to {output}.")
