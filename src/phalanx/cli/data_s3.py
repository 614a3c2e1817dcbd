"""phalanx data put, get, ls and rm: objects in S3, from and to this machine, with the user's own rights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from phalanx import connection, guest_file
from phalanx.aws.s3_transfer import Store
from phalanx.cli.carrying import Meter
from phalanx.cli.console import confirm, note, print_json, print_table, require_terminal, say
from phalanx.cli.options import (
    DEFAULT_FILE,
    ExistingPath,
    cluster_option,
    debug_option,
    json_option,
    load_cluster,
    yes_option,
)
from phalanx.cli.terminal import one_line
from phalanx.counts import counted
from phalanx.jobs.transfer import Moved
from phalanx.objects.download import size_text
from phalanx.spec.spec_load import load

if TYPE_CHECKING:
    from phalanx.aws.s3_transfer import Copied
    from phalanx.objects.download import Progress

_SHOWN = 20


@click.command("put")
@cluster_option
@json_option
@debug_option
@click.argument("source", metavar="PATH", type=ExistingPath())
@click.argument("url", metavar="s3://BUCKET/KEY")
def put(name: str | None, file: Path | None, as_json: bool, source: Path, url: str) -> int:
    """Copy a file or a directory from this machine to S3, with your own rights.

    A directory's files are placed below KEY. Objects with the same content are not copied again, so after an
    interruption the same command continues. In the local cloud, a missing bucket is created.

    What can't be copied is named, and the rest is copied. The exit code is 1 then, except for links, which S3 does
    not have.

    \b
    Examples:
      phalanx data put images s3://my-bucket/pets
      phalanx data put labels.csv s3://my-bucket/pets/
    """
    copied = _store(name, file, url, make=True).put(source, _meter())
    _report(copied, as_json)
    return 0 if copied.is_whole else 1


@click.command("get")
@cluster_option
@json_option
@debug_option
@click.argument("url", metavar="s3://BUCKET/KEY")
@click.argument("destination", metavar="[DIRECTORY]", default=Path(), type=click.Path(path_type=Path))
def get(name: str | None, file: Path | None, as_json: bool, url: str, destination: Path) -> None:
    """Copy an object, or all below a prefix, from S3 into a directory of this machine, with your own rights.

    Files with their object's size and time are not copied again, so after an interruption the same command
    continues.

    \b
    Examples:
      phalanx data get s3://my-bucket/runs/model.pt
      phalanx data get s3://my-bucket/runs results/
    """
    _report(_store(name, file, url).get(destination, _meter()), as_json)


@click.command("ls")
@cluster_option
@json_option
@debug_option
@click.argument("url", metavar="s3://BUCKET/KEY")
def ls(name: str | None, file: Path | None, as_json: bool, url: str) -> None:
    """List an object, or all below a prefix, and count them.

    \b
    Examples:
      phalanx data ls s3://my-bucket/pets
      phalanx data ls s3://my-bucket/pets --json
    """
    found = _store(name, file, url).objects()
    if as_json:
        print_json([asdict(one) for one in found])
        return
    print_table(("KEY", "SIZE"), [(one.key, size_text(one.size)) for one in found[:_SHOWN]])
    total = size_text(sum(one.size for one in found))
    note(
        f"{counted(len(found), 'object')}, {total}" + (f"; the first {_SHOWN} are shown" if len(found) > _SHOWN else "")
    )


@click.command("rm")
@cluster_option
@yes_option
@debug_option
@click.argument("url", metavar="s3://BUCKET/KEY")
def rm(name: str | None, file: Path | None, yes: bool, url: str) -> None:
    """Delete an object, or all below a prefix, with your own rights.

    \b
    Examples:
      phalanx data rm s3://my-bucket/pets/old.csv
      phalanx data rm s3://my-bucket/runs --yes
    """
    store = _store(name, file, url)
    found = store.objects()
    if not found:
        note(f"there is nothing at {url}")
        return
    if not yes:
        require_terminal()
        first = "" if len(found) == 1 else ", the first of them"
        confirm(f"Delete {counted(len(found), 'object')}{first} {found[0].key}?")
    store.remove(found)
    say(f"deleted {counted(len(found), 'object')}")


def _store(name: str | None, file: Path | None, url: str, make: bool = False) -> Store:
    """Return the bucket in the cloud of the chosen cluster, or of the cluster that phalanx.yaml describes."""
    return Store(connection.connect(*_place(name, file)), url, make)


def _place(name: str | None, file: Path | None) -> tuple[str, str]:
    path = file or Path(DEFAULT_FILE)
    if name or not guest_file.answer(path, path.exists):
        cluster = load_cluster(name, file)
        return cluster.cloud, cluster.region
    spec = load(path)
    return spec.cloud, spec.region


def _meter() -> Callable[[Progress], None]:
    """Show a copy's progress as `phalanx get` and `put` do."""
    meter = Meter()
    return lambda progress: meter(Moved(progress.bytes, progress.total_bytes))


def _report(copied: Copied, as_json: bool) -> None:
    if as_json:
        print_json(asdict(copied))
        return
    say(copied.place)
    unchanged = f"; {copied.unchanged} unchanged" if copied.unchanged else ""
    note(f"{counted(copied.objects, 'object')}, {size_text(copied.bytes)}{unchanged}")
    for one in copied.left_out[:5]:
        note(f"left out: {one_line(one)}")
    if len(copied.left_out) > 5:
        note(f"left out: {len(copied.left_out) - 5} more of these")
