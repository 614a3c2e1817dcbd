"""Measure all figures, or those that are named (`python -m benchmarks up down`), and print a table.

Measuring all also writes benchmarks/results/<date>.json.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import os
import platform
import subprocess
from dataclasses import asdict

from benchmarks.measure import ROOT, Figure, header, show

MODULES = (
    "help",
    "up",
    "emr",
    "run",
    "launch",
    "start",
    "arrays",
    "logs",
    "page",
    "stacks",
    "load",
    "throughput",
    "down",
    "memory",
)
ONLY_BY_NAME = ("many_nodes", "membership", "send", "environment", "s3", "shards", "rules")


def machine() -> dict[str, object]:
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    return {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "commit": commit.strip(),
    }


def write(figures: list[Figure]) -> None:
    results = ROOT / "benchmarks" / "results"
    results.mkdir(exist_ok=True)
    path = results / f"{datetime.date.today().isoformat()}.json"
    rows = [{**asdict(figure), "median": figure.median, "verdict": figure.verdict} for figure in figures]
    path.write_text(json.dumps({"machine": machine(), "figures": rows}, indent=1, ensure_ascii=False) + "\n")
    print(f"\nwritten to {path.relative_to(ROOT)}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join((*MODULES, *ONLY_BY_NAME))}")
    chosen = parser.parse_args().names or MODULES
    if unknown := set(chosen) - {*MODULES, *ONLY_BY_NAME}:
        parser.error(f"unknown figure {', '.join(sorted(unknown))}; see --help")
    figures: list[Figure] = []
    print(header())
    for name in chosen:
        for figure in importlib.import_module(f"benchmarks.{name}").figures():
            figures.append(figure)
            show([figure])
    if tuple(chosen) == MODULES:
        write(figures)
    raise SystemExit(any(figure.verdict == "MISSED" for figure in figures))


if __name__ == "__main__":
    main()
