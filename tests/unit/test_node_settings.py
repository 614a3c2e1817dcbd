"""The agent's settings: texts, of which some are numbers."""

from __future__ import annotations

import typing

from phalanx.node.settings import ON_AWS, Patience, Settings


def test_every_number_among_the_settings_is_read_as_one():
    kinds = typing.get_type_hints(Settings)
    made = Settings.of({**dict.fromkeys((*Settings._fields, "workers"), "7"), "format": "1", "patience": ""})
    assert {name for name in Settings._fields if isinstance(getattr(made, name), int)} == {
        name for name, kind in kinds.items() if kind is int
    }
    assert made.nodes == 8, "the document counts workers, and the agent nodes"


def test_an_agents_times_are_those_for_aws_unless_a_rehearsal_passes_others():
    given = {
        **dict.fromkeys((*Settings._fields, "workers"), "7"),
        "format": "1",
        "patience": "call_s=6,notice_every_s=0.5",
    }
    assert Settings.of(given).patience == ON_AWS._replace(call_s=6.0, notice_every_s=0.5)
    del given["patience"]
    assert Settings.of(given).patience == ON_AWS
    assert all(name.endswith("_s") for name in Patience._fields)
