"""Train with every engine until it reaches what it is known for: `make soak PART=engines` (half an hour on two cores).

The tests are in tests/whole. The result has a line for each figure that they print.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import subprocess
import sys
from collections.abc import Sequence

from benchmarks.__main__ import machine
from benchmarks.measure import ROOT, todays_result

_KEPT = re.compile(r"^figure: (.*)|^((?:PASSED|FAILED|ERROR) tests/.*)|^ *([\d.]+s call .*)", re.MULTILINE)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", help="has no effect: these trainings have their own seeds")
    parser.add_argument("--only", default="", help="only tests with such names, and no result file")
    chosen = parser.parse_args(argv)
    words = ["-m", "whole", "-p", "no:randomly", "-n", "0", "-rA", "--durations=0", "--durations-min=1", "tests/whole"]
    began, found = datetime.datetime.now(datetime.timezone.utc), machine()
    with subprocess.Popen(
        [sys.executable, "-m", "pytest", *words, *(["-k", chosen.only] if chosen.only else [])],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout
        shown = []
        for line in running.stdout:
            print(line, end="", flush=True)
            shown.append(line)
    head = [
        f"date      {began:%Y-%m-%d %H:%M} UTC",
        f"commit    {found['commit']}",
        f"machine   {found['cores']} CPUs, Linux {found['kernel']}, load {os.getloadavg()[0]:.2f}",
        "",
    ]
    kept = [next(filter(None, one.groups())) for one in _KEPT.finditer("".join(shown))]
    if not chosen.only:
        todays_result("engines", "txt").write_text(
            "\n".join([*head, *dict.fromkeys(kept), shown[-1].strip("= \n")]) + "\n"
        )
    return running.returncode


if __name__ == "__main__":
    sys.exit(main())
