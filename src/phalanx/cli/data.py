"""phalanx data: public data sets on the cluster's shared directory."""

from __future__ import annotations

from pathlib import Path

import click

from phalanx.cli.console import note, print_json, print_table
from phalanx.cli.options import cluster_option, debug_option, json_option, load_cluster


@click.group("data")
def command() -> None:
    """Place public data sets on the cluster's shared directory, in the forms in which libraries look for them.

    \b
    Examples:
      phalanx data list
      phalanx data fetch mnist
    """


def _names(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    from phalanx.reach.fetch_data import catalog

    return [name for name in catalog() if name.startswith(incomplete)]


@command.command("list")
@json_option
@debug_option
def list_(as_json: bool) -> None:
    """List the data sets that `phalanx data fetch` knows.

    \b
    Examples:
      phalanx data list
      phalanx data list --json
    """
    from phalanx.reach.fetch_data import catalog

    if as_json:
        print_json(catalog())
        return
    print_table(("NAME", "WHAT"), [(name, entry["summary"]) for name, entry in catalog().items()])


@command.command("fetch")
@cluster_option
@click.option("--from", "source", metavar="URL", help="Download the files from this directory instead.")
@debug_option
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=_names)
def fetch(name: str | None, file: Path | None, source: str | None, names: tuple[str, ...]) -> int:
    """Download data sets on the head and verify them by SHA-256. One that is there already is not fetched again.

    A job does it, which `phalanx logs`, `jobs` and `stop` know. Ctrl-C stops it; the same command starts it again.

    \b
    Examples:
      phalanx data fetch mnist fashion-mnist
      phalanx data fetch cifar10 --from https://mirror.example.com/cifar/
    """
    import tempfile

    from phalanx.cli.starting import start
    from phalanx.reach.fetch_data import DIRECTORY, fetch_job

    cluster = load_cluster(name, file)
    cluster.require_ready()
    with tempfile.TemporaryDirectory() as parent:
        job = fetch_job(names, Path(parent) / "code", cluster.shared, source)
        status = start(cluster, job, detach=False)
    if status == 0:
        root = f"{cluster.shared}/{DIRECTORY}"
        note(f"torchvision: root={root} · Chainer: CHAINER_DATASET_ROOT={root}/chainer, set by its recipes")
        note(f"scripts that read ./data: `phalanx run --link data={DIRECTORY}/{names[0]} …`")
    return status
