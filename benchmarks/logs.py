"""Logs: 16 processes on 4 nodes write 100,000 lines per second; `run` must show every line without delay.

For comparison, the same with `mpiexec` on the head, its output in a file, and `tail -f` over ssh.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from benchmarks.cluster import BenchCluster, bench_cluster
from benchmarks.measure import Figure, show

NODES, PER_NODE = 4, 4
RANKS = NODES * PER_NODE
LINES_PER_S = 100_000
SECONDS = 10
EACH = LINES_PER_S * SECONDS // RANKS
BEHIND_S = 1.0

# Paced to the given rate rather than the fastest one; one write for all lines of 10 ms.
WRITER = f"""import os, time
rank, rate, each = int(os.environ["OMPI_COMM_WORLD_RANK"]), {LINES_PER_S // RANKS}, {EACH}
began, written = time.time(), 0
while written < each:
    due = min(each, int((time.time() - began) * rate) + 1)
    text = "".join(f"line {{rank}} {{number}} {{time.time():.3f}}\\n" for number in range(written, due))
    while text:
        text = text[os.write(1, text.encode()):]
    written = due
    time.sleep(0.01)
"""

_LINE = re.compile(r"line (\d+) (\d+) (\d+\.\d{3})$")


class Seen:
    """The lines in an output file: how many are lost or out of order in their rank, and the delay of the last."""

    def __init__(self, output: Path) -> None:
        self.last_written_at = 0.0
        self.out_of_order = 0
        counts: Counter[str] = Counter()
        with output.open(errors="replace") as lines:
            for line in lines:
                # mpiexec puts tags into the middle of some lines: these count as lost.
                whole = _LINE.search(line)
                if not whole:
                    continue
                rank, number, written_at = whole.groups()
                self.out_of_order += int(number) != counts[rank]
                counts[rank] += 1
                self.last_written_at = max(self.last_written_at, float(written_at))
        self.lost = RANKS * EACH - sum(counts.values())
        self.behind_s = output.stat().st_mtime - self.last_written_at


def under_phalanx(cluster: BenchCluster, code: Path) -> Seen:
    output = code.parent / "phalanx.log"
    arguments = ("run", "--launcher", "mpi", "-n", str(RANKS), "-N", str(PER_NODE), "--directory", str(code))
    cluster.show(output, *arguments, "--", "python", "writer.py")
    return Seen(output)


def by_hand(cluster: BenchCluster, code: Path) -> Seen:
    output = code.parent / "mpiexec.log"
    cluster.phalanx("put", str(code), "writer")
    command = (
        f"cd /efs/writer && : > all.log && mpiexec --tag-output -n {RANKS} -N {PER_NODE} python writer.py > all.log &"
        " sleep 0.1; tail -n +1 -f --pid=$! /efs/writer/all.log; wait"
    )
    cluster.show(output, "ssh", "head", "--", command)
    return Seen(output)


def figures() -> Iterator[Figure]:
    with bench_cluster(NODES, PER_NODE) as cluster:
        code = cluster.directory / "code"
        code.mkdir()
        (code / "writer.py").write_text(WRITER)
        cluster.up()
        ours, theirs = under_phalanx(cluster, code), by_hand(cluster, code)
        cluster.down()
    rate = f"{LINES_PER_S:,} lines/s from {RANKS} processes"
    yield Figure(f"{rate} for {SECONDS} s: lines lost", (ours.lost,), unit="", target=0)
    yield Figure("  out of order in their rank", (ours.out_of_order,), unit="", target=0)
    yield Figure("  delay of the last line", (ours.behind_s,), target=BEHIND_S)
    yield Figure("  for comparison: mpiexec --tag-output and tail -f: lines lost", (theirs.lost,), unit="")
    yield Figure("  for comparison: out of their order in a rank", (theirs.out_of_order,), unit="")
    yield Figure("  for comparison: last line shown after it was written", (theirs.behind_s,))


if __name__ == "__main__":
    show(list(figures()))
