"""What phalanx.torch's suggestions are worth on slow links: python -m benchmarks.ethernet [--samples 5] [--within 540]

On four nodes of a local cluster whose links are limited, samples of all cases in turn, so that what else the machine
does meets all of them. Each sample is a job that measures, in turns, a step without exchange, with plain DDP and with
what `suggest` chose there. Fashion-MNIST is trained with plain DDP and with every choice of a sample, for the accuracy.

Every sample is kept at once in benchmarks/results/ethernet-<date>.jsonl. With --within, no sample begins after so many
seconds, and the same command goes on. Once all are there, it writes the table (.txt) beside them.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.cluster import BenchCluster, bench_cluster
from benchmarks.measure import GOES_ON, ROOT, record_to_go_on

STEPS = ROOT / "benchmarks" / "ethernet_job"
TRAINING = ROOT / "examples" / "fashion_mnist"
SEEDS = (1, 2, 3)
EPOCHS = 2
_WITHIN_POINTS = 0.5
_JOB_WITHIN_S = 900

Sample = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A link, a workload, and what the suggestion must reach with two nodes: of the ideal speed, or times plain DDP."""

    name: str
    rate: str
    ratio: float
    is_busy: bool
    reach: float
    is_efficiency: bool = False
    turns: int = 3
    by_pairs: bool = False

    def values(self, sample: Sample) -> list[float]:
        """Return a sample's value, or that of each of its turns: a pair of plain DDP and the choice."""
        base = "alone_s" if self.is_efficiency else "plain_s"
        return [one[base] / one["chosen_s"] for one in (sample["rounds"] if self.by_pairs else [sample])]


CASES = (
    Case("1 Gbit/s, 1:1, compute off the CPU", "1gbit", 1.0, False, 0.95, True),
    Case("1 Gbit/s, 1:1, on the CPU", "1gbit", 1.0, True, 1.45),
    Case("1 Gbit/s, 1:2, on the CPU", "1gbit", 0.5, True, 1.65),
    Case("250 Mbit/s, 1:4, on the CPU", "250mbit", 0.25, True, 3.3, turns=2),
    Case("unshaped, 1:1, on the CPU", "none", 1.0, True, 0.98, turns=4, by_pairs=True),
)
NODES = (2, 4)
SHAPED = "1gbit"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ethernet", description=__doc__)
    parser.add_argument("--samples", type=int, default=5, help="of each case (%(default)s)")
    parser.add_argument("--within", type=float, default=float("inf"), help="begin no sample after so many seconds")
    parser.add_argument("--nodes", type=int, action="append", choices=NODES, help="only with so many nodes")
    parser.add_argument("--case", default="", help="only cases whose names contain this")
    parser.add_argument("--record", type=Path, help=GOES_ON)
    arguments = parser.parse_args()
    until_s = time.monotonic() + arguments.within
    speeds = wanted_speeds(arguments.samples, tuple(arguments.nodes or NODES), arguments.case)
    if not speeds:
        parser.error(f"no case contains '{arguments.case}': {'; '.join(case.name for case in CASES)}")
    record = arguments.record or record_to_go_on("ethernet", 2, lambda kept: 1 if missing(_read(kept), speeds) else 2)
    if _complete(record, speeds, until_s):
        _report(record)
    else:
        print(f"{len(missing(_read(record), speeds))} samples are missing: run this command again to go on")


def wanted_speeds(samples: int, nodes: tuple[int, ...] = NODES, part: str = "") -> list[Sample]:
    """Return the keys of all samples of speed, those of two nodes, which decide, first."""
    cases = [case for case in CASES if part in case.name]
    return [
        {"kind": "speed", "case": case.name, "nodes": count, "number": number}
        for count in sorted(nodes)
        for number in range(samples)
        for case in cases
    ]


def missing(taken: list[Sample], speeds: list[Sample]) -> list[Sample]:
    """Return the keys of which there is no sample yet: the speeds, and the accuracy of each choice that one took.

    The accuracies of what was chosen with two nodes come before the speeds of four.
    """
    found: list[Sample] = []
    for nodes in sorted({key["nodes"] for key in speeds}):
        own = [key for key in speeds if key["nodes"] == nodes]
        choices = {sample["choice"] for sample in taken if any(key.items() <= sample.items() for key in own)}
        trainings = [
            {"kind": "accuracy", "choice": choice, "seed": seed}
            for choice in sorted({"plain", *choices})
            for seed in SEEDS
        ]
        wanted = [key for key in own + trainings if key not in found]
        found += [key for key in wanted if not any(key.items() <= sample.items() for sample in taken)]
    return found


def _complete(record: Path, speeds: list[Sample], until_s: float) -> bool:
    """Take the samples that the record lacks; return whether all are there."""
    if not missing(_read(record), speeds):
        return True
    with bench_cluster(max(NODES)) as cluster:
        cluster.up()
        # What a sample chooses is to be trained, too.
        while left := missing(_read(record), speeds):
            if time.monotonic() > until_s:
                return False
            key = left[0]
            sample = {**key, **(_speed if key["kind"] == "speed" else _accuracy)(cluster, key)}
            with record.open("a") as file:
                file.write(json.dumps(sample) + "\n")
            print(_line(sample), flush=True)
        cluster.down()
    return True


def _read(record: Path) -> list[Sample]:
    return [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []


def _speed(cluster: BenchCluster, key: Sample) -> Sample:
    case = next(case for case in CASES if case.name == key["case"])
    cluster.phalanx("local", "link", "--rate", case.rate)
    busy = ["--busy"] if case.is_busy else []
    words = ["steps.py", "--ratio", str(case.ratio), "--turns", str(case.turns), *busy]
    output = _job(cluster, STEPS, key["nodes"], *words)
    return json.loads(next(line for line in output.splitlines() if "exchange_s" in line).partition(" ")[2])


def _accuracy(cluster: BenchCluster, key: Sample) -> Sample:
    """Train with a choice."""
    cluster.phalanx("local", "link", "--rate", "1gbit")
    words = ["--hidden", "4096", "--batch-size", "256", "--epochs", str(EPOCHS), "--seed", str(key["seed"])]
    output = _job(
        cluster, TRAINING, 2, "train.py", *words, "--exchange", key["choice"], "--out", f"/tmp/{time.time_ns()}"
    )
    validation = re.search(rf"^\[0\] {EPOCHS} +(?:[\d.]+ +){{3}}([\d.]+) ", output, re.MULTILINE)
    assert validation, output
    return {"accuracy": 100 * float(validation[1])}


def _job(cluster: BenchCluster, directory: Path, nodes: int, *words: str) -> str:
    options = ["--launcher", "torchrun", "-n", str(nodes), "-N", "1", "--no-requirements"]
    code = ["--env", "OMP_NUM_THREADS=1", "--directory", str(directory)]
    return cluster.output("run", *options, *code, "--", *words, timeout_s=_JOB_WITHIN_S)


def _line(sample: Sample) -> str:
    if sample["kind"] == "accuracy":
        return f"accuracy {sample['accuracy']:.2f} %, seed {sample['seed']}, {sample['choice']}"
    steps = " ".join(f"{name[:-2]} {sample[name] * 1e3:.0f} ms" for name in ("alone_s", "plain_s", "chosen_s"))
    return f"{sample['case']}, {sample['nodes']} nodes: {steps}, {sample['choice']}"


def _report(record: Path) -> None:
    """Write the table and the plot, and print the table."""
    samples = _read(record)
    speeds = [sample for sample in samples if sample["kind"] == "speed"]
    accuracies = _accuracies(samples)
    lines = [
        f"{'case':<36}{'nodes':>6}{'plain':>9}{'chosen':>9}{'value':>8}{'from-to':>12}{'reach':>7}  chosen: accuracy"
    ]
    for nodes in NODES:
        for case in CASES:
            own = [one for one in speeds if one["case"] == case.name and one["nodes"] == nodes]
            if own:
                lines.append(row(case, nodes, own, accuracies))
    lines += [
        _accuracy_line(samples, accuracies),
        "plain and chosen: speed, of the ideal without any exchange; value: what reach is for",
        "value of the unshaped case: the median of all pairs of plain DDP and the choice, one for each turn",
    ]
    text = "\n".join(lines) + "\n"
    record.with_suffix(".txt").write_text(text)
    print(text)


def row(case: Case, nodes: int, own: list[Sample], accuracies: dict[str, float]) -> str:
    """Return the line of a case: medians, the verdict, and the accuracy of each choice."""
    values = [value for sample in own for value in case.values(sample)]
    plain, chosen = (statistics.median(one["alone_s"] / one[name] for one in own) for name in ("plain_s", "chosen_s"))
    verdict = ("met" if statistics.median(values) >= case.reach else "MISSED") if nodes == NODES[0] else ""
    spread = f"{min(values):.2f}-{max(values):.2f}"
    names = sorted({sample["choice"] for sample in own})
    choices = ", ".join(f"{name}: {accuracies[name]:.2f} %" if name in accuracies else name for name in names)
    numbers = f"{plain:>9.0%}{chosen:>9.0%}{statistics.median(values):>8.2f}{spread:>12}{case.reach:>7.2f}"
    return f"{case.name:<36}{nodes:>6}{numbers}  {choices}  {verdict}".rstrip()


def _accuracies(samples: list[Sample]) -> dict[str, float]:
    """Return the mean accuracy on Fashion-MNIST of each choice with which it was trained, in percent."""
    trained = [sample for sample in samples if sample["kind"] == "accuracy"]
    return {
        name: statistics.mean(sample["accuracy"] for sample in trained if sample["choice"] == name)
        for name in {sample["choice"] for sample in trained}
    }


def _accuracy_line(samples: list[Sample], accuracies: dict[str, float]) -> str:
    """Compare what was chosen most often at 1 Gbit/s with plain DDP."""
    cases = {case.name for case in CASES if case.rate == SHAPED}
    chosen = [sample["choice"] for sample in samples if sample.get("case") in cases and sample["nodes"] == NODES[0]]
    name = statistics.mode(chosen) if chosen else "plain"
    verdict = "met" if accuracies[name] >= accuracies["plain"] - _WITHIN_POINTS else "MISSED"
    return f"Fashion-MNIST: plain {accuracies['plain']:.2f} %, {name} {accuracies[name]:.2f} %  {verdict}"


if __name__ == "__main__":
    main()
