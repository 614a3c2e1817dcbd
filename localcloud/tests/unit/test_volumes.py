"""How the nodes' volumes share this machine's memory."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from localcloud.nodes import kernel
from localcloud.nodes.volumes import Pool, shares

GIB, LEAST = 1 << 30, 16 << 20


class Kernel:
    """Records the size of each mounted volume, and how often one was set."""

    def __init__(self) -> None:
        self.sizes: dict[Path, int] = {}
        self.mounts = 0

    def mount(self, _source: str, target: Path, _kind: str | None, _flags: int, options: str) -> None:
        self.sizes[target] = int(options.partition("size=")[2].partition(",")[0])
        self.mounts += 1

    def unmount(self, target: Path) -> None:
        del self.sizes[target]


@pytest.fixture
def mounted(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    fake = Kernel()
    monkeypatch.setattr(kernel, "mount", fake.mount)
    monkeypatch.setattr(kernel, "unmount", fake.unmount)
    empty = SimpleNamespace(f_blocks=0, f_bfree=0, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda _path: empty)
    return fake


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


def test_many_volumes_share_the_memory_and_few_of_them_are_resized_for_each_that_comes_or_goes(
    tmp_path: Path, mounted: Kernel
) -> None:
    pool, paths = Pool(16 * GIB, "755", 0), [tmp_path / str(number) for number in range(500)]
    for path in paths:
        pool.mount(path)
    assert 16 * GIB * 9 // 10 <= sum(mounted.sizes.values()) <= 16 * GIB * 17 // 16
    for path in paths[8:]:
        pool.unmount(path)
    assert set(mounted.sizes.values()) == {2 * GIB}
    assert mounted.mounts < 500 * 50


def test_a_few_volumes_have_exactly_equal_parts(tmp_path: Path, mounted: Kernel) -> None:
    pool = Pool(12 * GIB, "755", 0)
    for number in range(1, 13):
        pool.mount(tmp_path / str(number), 4 * GIB)
        assert list(mounted.sizes.values()) == [min(4 * GIB, 12 * GIB // number)] * number
