"""What two recordings of an API's answers differ in: the faults of a stand-in."""

from __future__ import annotations

import json

import pytest
from benchmarks import recording


def one(call, answer=None, error=""):
    return {"call": call, **({"error": error} if error else {"answer": answer or {}})}


def states(*names):
    return [one("cfn:Describe", {"Stacks": [{"Status": name}]}) for name in names]


THEIRS = [
    *states("MADE", "BUSY", "DONE"),
    one("ec2:Get", {"A": 1, "B": {"C": "<text>"}}),
    one("ec2:Get", error="No: x"),
]


@pytest.mark.parametrize(
    ("ours", "said"),
    [
        (THEIRS, []),
        ([*THEIRS, one("ec2:More")], []),
        (THEIRS[:-1], ["ec2:Get: answers No there only"]),
        ([*THEIRS[:-1], one("ec2:Get", error="Other: x")], ["ec2:Get: answers No there only"]),
        (THEIRS[:3], ["ec2:Get: was only called there"]),
        ([*THEIRS[:3], one("ec2:Get", {"A": 1}), THEIRS[-1]], ["ec2:Get: B.C is there only"]),
        (
            [*THEIRS[:3], one("ec2:Get", {"A": "<text>", "B": {"C": "<text>"}}), THEIRS[-1]],
            ["ec2:Get: A is a number there, and a text here"],
        ),
        (
            [*states("MADE", "DONE", "BUSY"), *THEIRS[3:]],
            ["cfn:Describe: Stacks[].Status is BUSY there before DONE, and here after it"],
        ),
        # What only one has seen may be chance: nobody looked in time.
        ([*states("MADE", "DONE"), *THEIRS[3:]], []),
    ],
)
def test_each_difference_is_named_with_its_call(ours, said):
    assert recording.differences(THEIRS, ours) == said


@pytest.mark.parametrize("text", ["{", "[]\n", "7\n", '{"x": 1}\n'])
def test_a_file_that_is_no_recording_is_named(tmp_path, text):
    path = tmp_path / "recording.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"recording.jsonl is no recording"):
        recording.read(path)
    path.write_text(json.dumps(one("a:B")))
    assert len(recording.read(path)) == 1
