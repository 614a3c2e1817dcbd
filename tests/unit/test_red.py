"""The defences that `python -m benchmarks.red` takes out are still where it looks for them, and so are the tests."""

from __future__ import annotations

import ast
import json

import pytest
from benchmarks.measure import ROOT
from benchmarks.red.__main__ import DEFENCES, seen_before


@pytest.mark.parametrize("defence", DEFENCES, ids=lambda defence: defence.name)
def test_a_defence_can_be_taken_out(defence):
    for text in defence.applied(ROOT).values():
        ast.parse(text)
    path, _, name = defence.test.split()[0].partition("::")
    assert not name or f"def {name}(" in (ROOT / path).read_text()


def test_each_module_of_attacks_is_seen_to_fail():
    both = ("tests/attacks", "localcloud/tests/attacks")
    modules = {f"{tests}/{path.name}" for tests in both for path in (ROOT / tests).glob("test_*.py")}
    assert {defence.test.split()[0].partition("::")[0] for defence in DEFENCES} >= modules


def test_a_run_on_the_same_commit_goes_on(tmp_path):
    record = tmp_path / "red.jsonl"
    assert seen_before(record, "a") == {}
    rows = [{"commit": "a", "defence": "x", "row": "| x |"}, {"commit": "b", "defence": "y", "row": "| y |"}]
    record.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert seen_before(record, "a") == {"x": "| x |"}
