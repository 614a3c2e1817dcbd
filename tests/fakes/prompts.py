"""A pytest plug-in: a command prompt in this process, which captures the output, and a cloud in memory for it."""

from __future__ import annotations

from pathlib import Path

import click
import error_codes
import pytest
from fake_cloud import FakeAws, write_key

from phalanx import cli, connection, template
from phalanx.cli import plan as _plan  # noqa: F401 (first imported in a test, it would keep what is replaced below)
from phalanx.cluster import keys
from phalanx.errors import PhalanxError
from phalanx.local import endpoint
from phalanx.ssh.remote import Remote


class Prompt:
    """A prompt in its own directory, with its own state.

    `out` and `err` are the last command's output, `codes` those of its error and of the single mistakes in it.
    """

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        monkeypatch.setenv("PHALANX_STATE_DIR", str(directory / "state"))
        monkeypatch.chdir(directory)
        self._capsys = capsys
        self.out = self.err = ""
        self.codes: set[str] = set()
        report = cli._report

        def noted(error: PhalanxError, context: click.Context | None) -> int:
            self.codes = error_codes.codes(error)
            return report(error, context)

        monkeypatch.setattr(cli, "_report", noted)

    def __call__(self, *arguments: str) -> int:
        """Run `phalanx …`; return the exit code."""
        self.codes = set()
        status = cli.execute(list(arguments))
        self.out, self.err = self._capsys.readouterr()
        return status

    def refused(self, code: str, *facts: object) -> None:
        """Require that the last command failed with this code and said each of these facts."""
        assert code in self.codes, self.err
        assert error_codes.missing(facts, self.err) == [], self.err


@pytest.fixture
def phalanx(tmp_path, monkeypatch, capsys):
    """A prompt in an empty directory."""
    return Prompt(tmp_path, monkeypatch, capsys)


@pytest.fixture
def in_memory(tmp_path, monkeypatch):
    """The directory of records, for a `FakeAws`: no ssh connects, and no keys and no documents are generated."""
    monkeypatch.setenv("PHALANX_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr(Remote, "connect", lambda remote: None)
    monkeypatch.setattr(keys, "_generate", write_key)
    monkeypatch.setattr(template, "request", lambda plan: ("{}", plan.parameters()))
    return tmp_path / "state"


@pytest.fixture
def cloud(in_memory, monkeypatch, tmp_path):
    """The cloud of the file phalanx.yaml in that directory."""
    fake = FakeAws()
    monkeypatch.setattr(connection, "connect", lambda name, region: fake)
    monkeypatch.setattr(connection, "begin", lambda name: None)
    monkeypatch.setattr(endpoint, "find", lambda: "it runs")
    (tmp_path / "phalanx.yaml").write_text("name: demo\nnodes: 3\nmin: 1\n")
    return fake
