"""Remove each defence from a copy of the code, and check that the attack then succeeds: `python -m benchmarks.red`.

A test of an attack that passes without the defence proves nothing. `python -m benchmarks.red WORDS` checks only the
defences whose names contain these words; a run of all writes its results to a file. An attack succeeds when its test
fails by its own assertions. If a test passes, or its cluster does not come up, the exit status is 1.
"""

from __future__ import annotations

import datetime
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.measure import ROOT
from benchmarks.red import clusters, local_nodes
from benchmarks.red.defence import Defence

DEFENCES = (*clusters.DEFENCES, *local_nodes.DEFENCES)

_TEST_TIMEOUT_S = 900
_FAILED = 1  # pytest's exit status
_PYTEST = (sys.executable, "-m", "pytest", "-q", "-x", "--tb=short", "-p", "no:randomly")
_SHOWN_CHARACTERS = 160
_HEAD = "| without this defence | in | this test fails | with |\n|---|---|---|---|"


def main(arguments: list[str]) -> int:
    chosen = [defence for defence in DEFENCES if " ".join(arguments) in defence.name]
    with _copy_of_the_code() as copy:
        rows = [_tried(copy, defence) for defence in chosen]
    if None in rows:
        return 1
    if chosen == list(DEFENCES):
        _keep(filter(None, rows))
    return 0


def _tried(copy: Path, defence: Defence) -> str | None:
    """Run a defence's test without it; return a row of the table, or None when the test does not fail."""
    with _without(copy, defence):
        done = subprocess.run(
            [*_PYTEST, *defence.test.split()],
            cwd=copy,
            env={**os.environ, "PYTHONPATH": f"{copy / 'src'}:{copy / 'localcloud/src'}"},
            capture_output=True,
            text=True,
            timeout=_TEST_TIMEOUT_S,
            check=False,
        )
    shown = re.search("^E +(.+)", done.stdout, re.MULTILINE)
    if done.returncode != _FAILED or shown is None or not re.search("^FAILED ", done.stdout, re.MULTILINE):
        print(f"NOT RED: {defence.name}: {defence.test}\n{done.stdout[-2000:]}", flush=True)
        return None
    row = _row(defence, shown[1])
    print(row, flush=True)
    return row


@contextmanager
def _copy_of_the_code() -> Iterator[Path]:
    """Copy the files of this checkout that git tracks or would add."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    with tempfile.TemporaryDirectory(prefix="phalanx-red-") as directory:
        for name in filter(None, names.split("\0")):
            if (ROOT / name).is_file():
                (Path(directory) / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, Path(directory) / name)
        yield Path(directory)


@contextmanager
def _without(copy: Path, defence: Defence) -> Iterator[None]:
    texts = defence.applied(copy)
    for name, text in texts.items():
        (copy / name).write_text(text)
    try:
        yield
    finally:
        for name in texts:
            shutil.copy2(ROOT / name, copy / name)


def _row(defence: Defence, shown: str) -> str:
    files = ", ".join(
        dict.fromkeys(edit.file.removeprefix("localcloud/src/").removeprefix("src/phalanx/") for edit in defence.edits)
    )
    cells = (defence.name, files, defence.test.removeprefix("tests/attacks/"), f"{shown:.{_SHOWN_CHARACTERS}}")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _keep(rows: Iterable[str]) -> None:
    today = datetime.datetime.now(datetime.timezone.utc).date()
    # Paths of the machine that ran it mean nothing to a reader.
    text = "\n".join([_HEAD, *rows, ""]).replace(f"{ROOT}/", "")
    text = re.sub(r"/tmp/pytest-of-\w+/pytest-\d+/", "TMP/", text)
    (ROOT / f"benchmarks/results/red-{today}.md").write_text(text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
