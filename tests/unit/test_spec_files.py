"""A phalanx.yaml that can't be read is refused before anything waits for it."""

import os

import pytest
from error_codes import raises_code

from phalanx.errors import SpecError
from phalanx.spec.spec_load import load


def test_no_file(tmp_path):
    with raises_code("no-file") as caught:
        load(tmp_path / "phalanx.yaml")
    assert "phalanx init" in caught.value.hint


def test_a_file_of_a_similar_name_is_mentioned(tmp_path):
    (tmp_path / "phalanx.yml").touch()
    with raises_code("no-file") as caught:
        load(tmp_path / "phalanx.yaml")
    assert "phalanx.yml" in caught.value.hint


def test_a_directory(tmp_path):
    with pytest.raises(SpecError, match="is a directory"):
        load(tmp_path)


def test_a_fifo_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "phalanx.yaml")
    with pytest.raises(SpecError, match="is not a regular file") as caught:
        load(tmp_path / "phalanx.yaml")
    assert "phalanx.yaml" in caught.value.message


@pytest.mark.parametrize("name", ["a\0b", "a" * 300])
def test_a_path_that_can_not_be(name):
    with pytest.raises(SpecError, match="can't be read"):
        load(name)
