"""Lint the documents of random combinations of all options: `make soak PART=combinations COUNT=200`.

The test is tests/parts/test_template_combinations.py, which `make test` runs with 20 combinations.
"""

from __future__ import annotations

import argparse
import datetime
import os
import subprocess
import sys

from benchmarks.__main__ import machine
from benchmarks.measure import ROOT

_TEST = "tests/parts/test_template_combinations.py"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="number of combinations")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    chosen = {"PHALANX_COMBINATIONS": str(arguments.count), "PHALANX_SEED": str(arguments.seed)}
    argv = [sys.executable, "-m", "pytest", "-q", "-n", "0", "--hypothesis-show-statistics", _TEST]
    done = subprocess.run(argv, cwd=ROOT, env={**os.environ, **chosen}, stdout=subprocess.PIPE, text=True, check=False)
    today = datetime.date.today().isoformat()
    head = f"{today}: {arguments.count} combinations of options, seed {arguments.seed}, commit {machine()['commit']}\n"
    print(text := head + done.stdout, end="")
    (ROOT / "benchmarks" / "results" / f"combinations-{today}.txt").write_text(text)
    raise SystemExit(done.returncode)


if __name__ == "__main__":
    main()
