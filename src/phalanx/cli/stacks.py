"""phalanx stacks: show what each rank of a job does at this moment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from phalanx.cli import complete
from phalanx.cli.console import moment, note, print_json, say
from phalanx.cli.options import cluster_option, debug_option, json_option, load_cluster
from phalanx.cli.terminal import one_line
from phalanx.jobs.rank_stacks import named, summary, take

if TYPE_CHECKING:
    from phalanx.jobs.rank_stacks import JobStacks, RankStack


@click.command("stacks")
@cluster_option
@json_option
@debug_option
@click.argument("job", required=False, shell_complete=complete.jobs)
@click.argument("rank", required=False)
def command(name: str | None, file: Path | None, as_json: bool, job: str | None, rank: str | None) -> int:
    """Show what each rank of JOB (default: the newest), or only RANK, does at this moment.

    For a Python process, this is the stack of its main thread, or with --json of all threads. Ranks with the same
    stack are one group, and the smallest group comes first: if all ranks but one wait, they wait for that one. For
    other programs, and without a stack, it is what the kernel says: whether the process runs, waits or is stopped,
    where in the kernel it sleeps, and which file it waits to read.

    For a job that has ended, it is what was saved when it stalled (`run --stall`), or before ranks were killed that did
    not end within --grace.

    Nothing in the job is stopped. The first use on a cluster installs py-spy on its nodes, from the index that pip
    uses there.

    \b
    Examples:
      phalanx stacks
      phalanx stacks 261121-0755 3
      phalanx stacks --json | jq '.ranks[] | {rank, state, reads}'
    """
    found = take(load_cluster(name, file), job, rank)
    if as_json:
        print_json(to_json(found))
        return 0
    groups = found.groups()
    if found.saved_at:
        note(f"saved at {moment(found.saved_at)}: {one_line(found.occasion)}")
    for line in summary(found, groups):
        say(one_line(line))
    for group in groups:
        say()
        for line in details(group):
            say(one_line(line))
    for node, why in found.silent.items():
        note(f"{one_line(node)}: {one_line(why)}")
    return 0


def to_json(found: JobStacks) -> dict[str, object]:
    """Return what --json prints: the ranks, each with the number of its group, in the order of the groups."""
    ranks = [{**_as_json(one), "group": number} for number, group in enumerate(found.groups()) for one in group]
    known = {"ended": found.ended, "silent": found.silent, "saved_at": found.saved_at, "occasion": found.occasion}
    return {"job": found.id, "ranks": ranks, **known}


def _as_json(one: RankStack) -> dict[str, object]:
    threads = [{"name": each.name, "frames": [frame._asdict() for frame in each.frames]} for each in one.threads]
    return {**asdict(one), "threads": threads}


def details(group: list[RankStack]) -> Iterator[str]:
    """Yield the stack that the ranks of a group share, under where they are."""
    for one in group:
        where = [f"process {one.pid} ({one.name}) {one.does}", f"{one.cpu_s:.1f} s of CPU time"]
        where += [f"in the kernel at {one.wchan}"] if one.wchan else []
        where += [f"reads {one.reads}"] if one.reads else []
        yield f"{named([one])} on {one.node}: {', '.join(where)}"
    width = max((len(frame.function) for frame in group[0].frames), default=0)
    for frame in group[0].frames:
        yield f"    {frame.function:<{min(width, 30)}}  {frame.place}"
    for why in sorted({one.why for one in group if one.why}):
        yield f"    no stack: {why}"
