"""phalanx data shard and verify: pack samples into even shards on this machine, and check shards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import click

from phalanx.cli.carrying import Meter
from phalanx.cli.console import note, print_json, say
from phalanx.cli.options import ExistingPath, debug_option, json_option
from phalanx.counts import counted
from phalanx.errors import PhalanxError
from phalanx.jobs.transfer import Moved
from phalanx.objects.download import size_text
from phalanx.packing import pack as checking
from phalanx.packing.pack import pack, plan
from phalanx.packing.samples import PackError, find
from phalanx.shards import ShardError, load

_SHARD_MIB = 256


@click.command("shard")
@click.option(
    "--format",
    "kind",
    type=click.Choice(("webdataset", "recordio")),
    default="webdataset",
    show_default=True,
    help="The shards' format.",
)
@click.option("--shards", type=click.IntRange(1, 99_999), metavar="N", help="Pack N shards.")
@click.option(
    "--shard-mib",
    type=click.IntRange(1),
    default=_SHARD_MIB,
    metavar="MIB",
    help=f"Without --shards: about this size. The default is {_SHARD_MIB}.",
)
@click.option("--seed", type=int, default=0, help="Another number gives another order of the samples.")
@json_option
@debug_option
@click.argument("source", metavar="FOLDER|TABLE", type=ExistingPath())
@click.argument("directory", metavar="DIRECTORY", type=click.Path(path_type=Path))
def shard(
    kind: str, shards: int | None, shard_mib: int, seed: int, as_json: bool, source: Path, directory: Path
) -> None:
    """Pack a folder or a table of samples into even shards on this machine, shuffled.

    A folder has a sub-folder for each class. A table is a CSV file with the columns path and label, or a .lst file of
    MXNet; its paths are relative to it. `webdataset` writes tar files, `recordio` MXNet's .rec and .idx. The same
    samples and options give the same shards. After an interruption, the same command continues.

    \b
    Examples:
      phalanx data shard pets shards/pets
      phalanx data shard labels.csv shards/pets --format recordio --shards 64
    """
    with _explained(directory, "The same command goes on with what is missing."):
        samples = find(str(source))
        planned = plan(samples, kind, seed, shard_mib << 20, shards or 0)
        packed = pack(samples, planned, str(directory), _meter())
    if as_json:
        print_json(asdict(packed))
        return
    say(str(directory))
    classes = f" of {len(packed.classes)} classes" if packed.classes else ""
    note(
        f"{counted(packed.samples, 'sample')}{classes} in {counted(packed.shards, 'shard')}, {size_text(packed.bytes)}"
    )
    if packed.left_out:
        note(f"left out: {counted(packed.left_out, 'file')} in no sub-folder")


@click.command("verify")
@json_option
@debug_option
@click.argument("directory", metavar="DIRECTORY", type=ExistingPath())
def verify(as_json: bool, directory: Path) -> int:
    """Compare shards with the sizes and SHA-256 with which they were packed; exit code 1 if one is damaged.

    \b
    Examples:
      phalanx data verify shards/pets
      phalanx data verify shards/pets --json
    """
    with _explained(directory):
        wrong = checking.verify(str(directory), _meter())
        shards = load(directory)
    if as_json:
        print_json({"directory": str(directory), "shards": len(shards), "problems": wrong})
    elif wrong:
        for problem in wrong:
            say(problem)
    else:
        samples = counted(sum(one.samples for one in shards), "sample")
        say(f"{counted(len(shards), 'shard')} with {samples}: as they were packed")
    return 1 if wrong else 0


def _meter() -> Callable[[int, int], None]:
    """Show progress as `phalanx get` and `put` do."""
    meter = Meter()
    return lambda done, total: meter(Moved(done, total))


@contextmanager
def _explained(directory: Path, hint: str = "") -> Iterator[None]:
    try:
        yield
    except (PackError, ShardError) as error:
        raise PhalanxError(*error.args, code=error.code) from error
    except OSError as error:
        raise PhalanxError(
            f"{error.filename or directory}: {error.strerror or error}", hint, code="os-error"
        ) from error
