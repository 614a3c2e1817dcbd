"""A directory on this machine whose file system does not answer, as on a server that is away."""

from __future__ import annotations

import pytest
from hanging_files import LOOKUP, READ_DIRECTORY, a_hanging_file_system

from phalanx import guest_file
from phalanx.code import code_tree
from phalanx.errors import JobError, SpecError
from phalanx.spec import spec_yaml


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(guest_file, "_SILENT_S", 0.2)


@pytest.mark.parametrize("request_", [LOOKUP, READ_DIRECTORY])
def test_a_directory_of_code_that_does_not_answer_is_named(tmp_path, request_):
    (tmp_path / "code").mkdir()
    with (
        a_hanging_file_system(tmp_path / "code" / "away", request_),
        pytest.raises(JobError, match=r"/code/away.*: its file system does not answer"),
    ):
        code_tree.scan(tmp_path / "code")


def test_a_phalanx_yaml_that_does_not_answer_is_named(tmp_path):
    with (
        a_hanging_file_system(tmp_path / "away", LOOKUP),
        pytest.raises(SpecError, match=r"phalanx\.yaml: can't be read: its file system does not answer"),
    ):
        spec_yaml._text_of_file(tmp_path / "away" / "phalanx.yaml")
