"""Counts in messages."""

from __future__ import annotations

import json

import pytest
from fake_cloud import roster

from phalanx.counts import counted, first_of, size_text


@pytest.mark.parametrize(("number", "text"), [(0, "0 nodes"), (1, "1 node"), (2, "2 nodes"), (1234, "1,234 nodes")])
def test_one_has_no_s(number, text):
    assert counted(number, "node") == text


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 bytes"), (1, "1 byte"), (1023, "1,023 bytes"), (1024, "1.0 KiB"), (3 << 30, "3.0 GiB")],
)
def test_a_size_is_in_the_largest_unit_that_it_fills(size_bytes, text):
    assert size_text(size_bytes) == text


def test_of_a_long_list_the_first_are_named_and_the_others_counted():
    assert first_of(["a", "b"]) == "a, b"
    assert first_of("abcd", most=2) == "a, b and 2 more"
    assert first_of(map(str, range(25_000)), "\n", most=1) == "0\nand 24,999 more"


def test_a_file_full_of_mistakes_is_answered_in_a_screen(phalanx, tmp_path):
    (tmp_path / "phalanx.yaml").write_text("name: demo\nnodes: 1\n" + "".join(f"k{n}: 1\n" for n in range(1_000)))
    assert phalanx("plan") == 2
    assert "and 980 more" in phalanx.err and len(phalanx.err) < 20_000
    assert phalanx("plan", "--json") == 2
    assert len(json.loads(phalanx.out)["error"]["problems"]) == 100


def test_a_cluster_of_one_node_with_one_slot_has_no_plural(phalanx, cloud, tmp_path):
    found = roster(1)
    cloud.roster = found._replace(nodes=(found.head._replace(slots=1),))
    (tmp_path / "phalanx.yaml").write_text("name: demo\nnodes: 1\nmin: 1\nslots: 1\n")
    assert phalanx("up") == 0
    assert "1 slot each" in phalanx.out
