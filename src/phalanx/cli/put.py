"""phalanx put: upload data to the shared directory."""

from __future__ import annotations

import posixpath
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from phalanx import guest_file
from phalanx.cli.carrying import Meter
from phalanx.cli.options import cluster_option, debug_option, load_cluster
from phalanx.cli.starting import start_own
from phalanx.jobs.transfer import put

if TYPE_CHECKING:
    from phalanx.cluster.cluster_record import Cluster

_S3 = "s3://"


@click.command("put")
@cluster_option
@debug_option
@click.argument("arguments", metavar="PATH... [SHARED_PATH]", nargs=-1, required=True, type=click.Path())
def command(name: str | None, file: Path | None, arguments: tuple[str, ...]) -> int:
    """Upload files and directories to the cluster's shared directory, which all nodes and jobs can read.

    SHARED_PATH is relative to the shared directory, or absolute; by default its top. If it is a directory or ends
    with a slash, the files are placed in it, as with cp. Several PATHs are always placed in a directory, which is
    created if needed. Each file appears only when it is complete. A file that exists there with the same size and
    time is not sent again. If something can't be read, or is a pipe, a socket or a device, it is named,
    the rest is copied, and the exit code is 1.

    If PATH is an S3 URL, a job copies the object, or everything below the prefix, with the rights of the role of
    jobs. `data` in phalanx.yaml must name it, or a prefix above it. SHARED_PATH is then a directory. Files that
    exist there are not copied again.

    \b
    Examples:
      phalanx put data
      phalanx put labels.csv sets/2026/
      phalanx put model.pt /efs/models/first.pt
      phalanx put *.py .
      phalanx put s3://my-bucket/imagenet/val sets/val
    """
    cluster = load_cluster(name, file)
    if any(word.startswith(_S3) for word in arguments):
        return _from_s3(cluster, arguments)
    sources, destination = _split(arguments, cluster.shared)
    is_whole = True
    for source in sources:
        meter = Meter()
        is_whole = meter.end(put(cluster, source, destination, meter)) and is_whole
    return 0 if is_whole else 1


def _from_s3(cluster: Cluster, arguments: tuple[str, ...]) -> int:
    from phalanx.cluster.stage_data import put_job  # here, because only a copy from S3 needs the SDK

    if arguments[-1].startswith(_S3) and len(arguments) > 1:
        raise click.UsageError(f"`phalanx data put {shlex.join(arguments)}` copies to S3")
    if len(arguments) != 2:
        raise click.UsageError(
            f"from S3, give one URL and a directory: phalanx put {shlex.join(arguments[:1])} SHARED_PATH"
        )
    url, destination = arguments
    endpoint = cluster.aws().s3_endpoint()
    return start_own(cluster, lambda code: put_job(cluster, url, destination, endpoint, code))


def _split(arguments: tuple[str, ...], shared: str) -> tuple[list[Path], str]:
    """Return (PATHs, DESTINATION). Raises UsageError if that is ambiguous, or one would replace another."""
    if len(arguments) == 1:
        return [Path(arguments[0])], ""
    sources, last = [Path(word) for word in arguments[:-1]], arguments[-1]
    is_here = guest_file.answer(last, Path(last).exists)
    if is_here and not last.startswith("/") and posixpath.basename(last) not in ("", ".", ".."):
        raise click.UsageError(_could_be_a_source(arguments, shared))
    names = [guest_file.answer(source, source.resolve).name for source in sources]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise click.UsageError(f"two sources are named '{twice}', and one would replace the other")
    return sources, f"{last}/" if len(sources) > 1 else last


def _could_be_a_source(arguments: tuple[str, ...], shared: str) -> str:
    everything = f"`phalanx put {shlex.join(arguments)} .` uploads all of them to {shared}"
    return f"the last argument is the destination, but {arguments[-1]} also exists here. {everything}; as the \
destination, write `{posixpath.join(shared, posixpath.normpath(arguments[-1]))}`"
