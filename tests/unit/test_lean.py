"""JSON by the C half of `json` equals that of its public functions."""

from __future__ import annotations

import _json
import importlib
import json

import pytest

from phalanx.runner import lean


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


@pytest.fixture
def with_another_c_half(monkeypatch):
    """`lean` on a Python whose C half has other parameters."""
    with monkeypatch.context() as here:
        here.setattr(_json, "make_encoder", lambda indent: None)
        yield importlib.reload(lean)
    importlib.reload(lean)


def test_where_the_c_half_is_another_the_public_one_works(with_another_c_half):
    assert with_another_c_half.dumps({"a": [1]}) == b'{"a": [1]}'
    assert with_another_c_half.loads(b'{"a": [1]}') == {"a": [1]}
