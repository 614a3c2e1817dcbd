"""The public names of `phalanx`."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import phalanx

PAGE = (Path(__file__).parents[2] / "docs" / "python.md").read_text()


@pytest.mark.parametrize("name", phalanx.__all__)
def test_every_name_is_there_when_it_is_asked_for(name):
    assert getattr(phalanx, name)


def test_type_checkers_see_the_same_names():
    tree = ast.parse(Path(phalanx.__file__).read_text())
    imports = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module not in ("typing", "phalanx.version")
    ]
    seen = {alias.name: node.module for node in imports for alias in node.names if node.module != "__future__"}
    assert seen == phalanx._PUBLIC
    assert set(phalanx.__all__) == {"__version__", *seen}


def test_others_are_not_there():
    assert dir(phalanx) == sorted(phalanx.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        phalanx.nonsense  # noqa: B018


@pytest.mark.parametrize("name", sorted({*phalanx.__all__} - {"__version__"}))
def test_every_name_is_documented(name):
    assert re.search(rf"\b{name}\b", PAGE)


def test_every_documented_name_is_there():
    named = set(re.findall(r"\bphalanx\.([A-Za-z]\w*)", PAGE)) - {"yaml"}
    assert named <= {*phalanx.__all__}
