"""The agent's settings: texts, of which some are numbers."""

from __future__ import annotations

import typing

from phalanx.node.settings import Settings


def test_every_number_among_the_settings_is_read_as_one():
    kinds = typing.get_type_hints(Settings)
    made = Settings.of({**dict.fromkeys(Settings._fields, "7"), "format": "1"})
    assert {name for name in Settings._fields if isinstance(getattr(made, name), int)} == {
        name for name, kind in kinds.items() if kind is int
    }
