"""CIFAR-10's binary version, which no package contains: the example's reader on records in that format."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "tensorflow_fashion_mnist" / "data.py"


@pytest.fixture
def data():
    found = importlib.util.spec_from_file_location("tensorflow_example_data", EXAMPLE)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def record(label: int, red: int, green: int, blue: int) -> bytes:
    """Make a record: the class, then three planes of 32 rows of 32 bytes."""
    return bytes([label]) + b"".join(bytes([value]) * 1024 for value in (red, green, blue))


def test_planes_become_channels_and_files_follow_each_other(data, tmp_path):
    first_row = bytes([3, *range(32)]) + bytes(31 * 32 + 2048)
    (tmp_path / "data_batch_2.bin").write_bytes(record(9, 1, 2, 3))
    (tmp_path / "data_batch_1.bin").write_bytes(first_row + record(0, 4, 5, 6))
    (tmp_path / "test_batch.bin").write_bytes(record(7, 0, 0, 0))
    images, labels = data.cifar10(tmp_path, "train")
    assert (images.shape, labels.tolist()) == ((3, 32, 32, 3), [3, 0, 9])
    assert images[0, 0, :, 0].tolist() == list(range(32))
    assert images[2, 31, 31].tolist() == [1, 2, 3]
    assert data.cifar10(tmp_path, "test")[1].tolist() == [7]


def test_a_directory_without_the_files_is_reported(data, tmp_path):
    with pytest.raises(SystemExit, match="no CIFAR-10 files"):
        data.cifar10(tmp_path, "train")
