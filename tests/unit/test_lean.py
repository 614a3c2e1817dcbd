"""JSON from its C half is JSON as the public half has it."""

from __future__ import annotations

import json

import pytest

from phalanx.node.runner import lean


@pytest.mark.parametrize(
    "value", [{}, [], None, True, 1.5, -7, "ü\ud800\n\"'", {"a": [1, {"b": None}], "": [[], {}]}, 10**30]
)
def test_what_is_written_and_read_is_as_json_has_it(value):
    assert lean.dumps(value) == json.dumps(value).encode()
    assert lean.loads(json.dumps(value, indent=1).encode() + b" \n") == value


@pytest.mark.parametrize("text", [b"", b"{", b'{"a": }', b"[1] 2", b'"a', b"nothing", b"\xff"])
def test_what_is_no_json_is_refused(text):
    with pytest.raises(ValueError):
        lean.loads(text)


def test_what_has_no_json_is_refused():
    with pytest.raises(TypeError, match="set has no JSON"):
        lean.dumps({"a": {1}})
