"""phalanx data: data on the cluster's shared directory, from S3 and from the publishers of public data sets."""

from __future__ import annotations

from pathlib import Path

import click

from phalanx.cli.console import note, print_json, print_table
from phalanx.cli.data_s3 import get, ls, put, rm
from phalanx.cli.data_shards import shard, verify
from phalanx.cli.options import cluster_option, debug_option, json_option, load_cluster
from phalanx.cli.starting import start_own
from phalanx.cluster.stage_data import named, stage_job
from phalanx.jobs.fetch_data import DIRECTORY, catalog, fetch_job


@click.group("data")
def command() -> None:
    """Bring data to the cluster's shared directory: from S3, or public data sets in the forms that libraries look for.

    `put`, `get`, `ls` and `rm` are about objects in S3; `phalanx put` and `phalanx get` copy to and from the cluster.
    `shard` packs many small files into few large ones.

    \b
    Examples:
      phalanx data put images s3://my-bucket/pets
      phalanx data stage pets
      phalanx data fetch mnist
    """


for one in (put, get, ls, rm, shard, verify):
    command.add_command(one)


def _names(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in catalog() if name.startswith(incomplete)]


@command.command("catalog")
@json_option
@debug_option
def catalog_(as_json: bool) -> None:
    """List the data sets that `phalanx data fetch` knows.

    \b
    Examples:
      phalanx data catalog
      phalanx data catalog --json
    """
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
    """Download data sets on the head and verify them by SHA-256. A data set that exists there is not downloaded
    again.

    This runs as a job, so `phalanx logs`, `jobs` and `stop` work. Ctrl-C stops it; the same command starts it
    again.

    \b
    Examples:
      phalanx data fetch mnist fashion-mnist
      phalanx data fetch cifar10 --from https://mirror.example.com/cifar/
    """
    cluster = load_cluster(name, file)
    if cluster.by_session and source is None:
        there = f"no node of {cluster.name} reaches the internet"
        note(f"{there}: name a mirror in its network with --from, or download here and `phalanx put`")
    status = start_own(cluster, lambda code: fetch_job(names, code, cluster.shared, source))
    if status == 0:
        root = f"{cluster.shared}/{DIRECTORY}"
        note(f"torchvision: root={root} · Chainer: CHAINER_DATASET_ROOT={root}/chainer, set by its recipes")
        note(f"scripts that read ./data: `phalanx run --link data={DIRECTORY}/{names[0]} …`")
    return status


@command.command("stage")
@cluster_option
@click.option("--scratch", is_flag=True, help="Copy to each node's own NVMe disks, $PHALANX_SCRATCH.")
@debug_option
@click.argument("names", metavar="[NAME...]", nargs=-1)
def stage(name: str | None, file: Path | None, scratch: bool, names: tuple[str, ...]) -> int:
    """Copy S3 prefixes of `data` in phalanx.yaml to the shared directory, as data/NAME; without NAME, all of them.

    With --scratch, every node copies them to its own NVMe disks, $PHALANX_SCRATCH/data/NAME, which end with the node.

    This runs as a job, with the rights of the role of jobs. Files that exist are not copied again, so after an
    interruption the same command continues. Every file is compared with its object's checksum, and appears when it
    is complete.

    \b
    Examples:
      phalanx data stage
      phalanx data stage imagenet
      phalanx data stage imagenet --scratch
    """
    cluster = load_cluster(name, file)
    wanted = named(cluster, names, scratch)
    endpoint = cluster.aws().s3_endpoint()
    return start_own(cluster, lambda code: stage_job(cluster, wanted, endpoint, code, scratch))
