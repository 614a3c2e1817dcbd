"""Counts in messages."""

from __future__ import annotations

import pytest
from fake_cloud import roster

from phalanx.counts import counted, first_of, size_text
from phalanx.errors import PhalanxError


@pytest.mark.parametrize(("number", "text"), [(0, "0 nodes"), (1, "1 node"), (2, "2 nodes"), (1234, "1,234 nodes")])
def test_one_has_no_s(number, text):
    assert counted(number, "node") == text


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 bytes"), (1, "1 byte"), (1023, "1,023 bytes"), (1024, "1.0 KiB"), (3 << 30, "3.0 GiB")],
)
def test_a_size_is_in_the_largest_unit_that_it_fills(size_bytes, text):
    assert size_text(size_bytes) == text


@pytest.mark.parametrize(
    ("number", "between", "text"),
    [(2, ", ", "0, 1"), (3, ", ", "0, 1 and 1 more"), (1002, "\n", "0\n1\nand 1,000 more")],
)
def test_a_list_that_others_wrote_has_an_end(number, between, text):
    assert first_of(map(str, range(number)), between, most=2) == text


def test_a_message_has_an_end():
    assert len(PhalanxError("x" * 10_000_000).message) < 100_000


def test_a_cluster_of_one_node_with_one_slot_has_no_plural(phalanx, cloud, tmp_path):
    found = roster(1)
    cloud.roster = found._replace(nodes=(found.head._replace(slots=1),))
    (tmp_path / "phalanx.yaml").write_text("name: demo\nnodes: 1\nmin: 1\nslots: 1\n")
    assert phalanx("up") == 0
    assert "1 slot each" in phalanx.out
