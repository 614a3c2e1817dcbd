"""Remove each defence from a copy of the code, and check that the attack then succeeds: `python -m benchmarks.red`.

A test of an attack that passes without the defence proves nothing. `python -m benchmarks.red WORDS` checks only the
defences whose names contain these words, and `--unseen` lists the tests of attacks that no defence names. A run of all
writes its results to a file, and goes on where one on the same commit was interrupted. An attack succeeds when its test
fails by its own assertions. If a test passes, or its cluster does not come up, the exit status is 1.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.__main__ import machine
from benchmarks.measure import RESULTS, ROOT, read_results, todays_result
from benchmarks.red import clusters, local_nodes
from benchmarks.red.defence import Defence

DEFENCES = (*clusters.DEFENCES, *local_nodes.DEFENCES)

_TEST_TIMEOUT_S = 900
_FAILED = 1  # pytest's exit status
_PYTEST = (sys.executable, "-m", "pytest", "-q", "-x", "--tb=short", "-p", "no:randomly")
_SHOWN_CHARACTERS = 160
_HEAD = "| without this defence | in | this test fails | with |\n|---|---|---|---|"


def main(arguments: list[str]) -> int:
    if arguments == ["--unseen"]:
        print("\n".join(unseen()))
        return 0
    chosen = [defence for defence in DEFENCES if " ".join(arguments) in defence.name]
    is_whole = chosen == list(DEFENCES)
    # That of a complete run is removed.
    record = max(RESULTS.glob("red-*.jsonl"), default=todays_result("red", "jsonl"))
    commit = str(machine()["commit"])
    rows = seen_before(record, commit) if is_whole else {}
    with _copy_of_the_code() as copy:
        for defence in chosen:
            if defence.name not in rows and (row := _tried(copy, defence)):
                rows[defence.name] = row
                if is_whole:
                    with record.open("a") as file:
                        file.write(json.dumps({"commit": commit, "defence": defence.name, "row": row}) + "\n")
    if not rows.keys() >= {defence.name for defence in chosen}:
        return 1
    if is_whole:
        _keep(rows[defence.name] for defence in chosen)
        record.unlink()
    return 0


def unseen() -> Iterator[str]:
    """Yield the tests of attacks that no defence names, by itself or with its whole module."""
    modules = (
        path for name in ("tests/attacks", "localcloud/tests/attacks") for path in (ROOT / name).glob("test_*.py")
    )
    for path in sorted(modules):
        module = str(path.relative_to(ROOT))
        for test in re.findall(r"^def (test_\w+)\(", path.read_text(), re.MULTILINE):
            if not any(_names(one.test, module, test) for one in DEFENCES):
                yield f"{module}::{test}"


def _names(arguments: str, module: str, test: str) -> bool:
    path, _, words = arguments.partition(" -k ")
    return path == f"{module}::{test}" or (path == module and words in test)


def seen_before(record: Path, commit: str) -> dict[str, str]:
    """Return the rows of the defences that an interrupted run on this commit has seen, by name."""
    return {one["defence"]: one["row"] for one in read_results(record) if one["commit"] == commit}


def _tried(copy: Path, defence: Defence) -> str | None:
    """Run a defence's test without it; return a row of the table, or None when the test does not fail."""
    with _without(copy, defence):
        code, output = _run(copy, defence.test)
    shown = re.search("^E +(.+)", output, re.MULTILINE)
    if code != _FAILED or shown is None or not re.search("^FAILED ", output, re.MULTILINE):
        print(f"NOT RED: {defence.name}: {defence.test}\n{output[-2000:]}", flush=True)
        return None
    row = _row(defence, shown[1])
    print(row, flush=True)
    return row


def _run(copy: Path, test: str) -> tuple[int, str]:
    """Run a test in the copy; return its exit status and output. One that takes too long ends its clusters first."""
    env = {**os.environ, "PYTHONPATH": f"{copy / 'src'}:{copy / 'localcloud/src'}"}
    argv = [*_PYTEST, *test.split()]
    with subprocess.Popen(argv, cwd=copy, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
        try:
            output, _ = run.communicate(timeout=_TEST_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            run.send_signal(signal.SIGINT)
            output, _ = run.communicate()
    return run.returncode, output


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
    # Paths of the machine that ran it mean nothing to a reader.
    text = "\n".join([_HEAD, *rows, ""]).replace(f"{ROOT}/", "")
    text = re.sub(r"/tmp/pytest-of-\w+/pytest-\d+/", "TMP/", text)
    todays_result("red", "md").write_text(text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
