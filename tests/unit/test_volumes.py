"""How the nodes' volumes share this machine's memory."""

from __future__ import annotations

import pytest

from phalanx.localcloud.nodes.volumes import shares

GIB, LEAST = 1 << 30, 16 << 20


@pytest.mark.parametrize(
    ("used", "sizes"),
    [
        ([], []),
        ([0], [12 * GIB]),
        ([0, 0, 5], [4 * GIB] * 3),
        ([9 * GIB, 0, GIB], [9 * GIB, 3 * GIB // 2, 3 * GIB // 2]),
        ([12 * GIB, 0], [12 * GIB, LEAST]),
        ([7 * GIB, 5 * GIB], [7 * GIB, 5 * GIB]),
    ],
)
def test_each_volume_has_an_equal_part_of_what_is_not_taken_already(used: list[int], sizes: list[int]) -> None:
    assert shares(12 * GIB, used) == sizes
