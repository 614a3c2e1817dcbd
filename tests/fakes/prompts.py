"""A command prompt in this process: runs command lines and captures their output."""

from __future__ import annotations

from pathlib import Path

import pytest

from phalanx import cli


class Prompt:
    """A prompt in its own directory, with its own state; `out` and `err` are the last command's output."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        monkeypatch.setenv("PHALANX_STATE_DIR", str(directory / "state"))
        monkeypatch.chdir(directory)
        self._capsys = capsys
        self.out = self.err = ""

    def __call__(self, *words: str) -> int:
        """Run `phalanx …`; return the exit code."""
        status = cli.execute(list(words))
        self.out, self.err = self._capsys.readouterr()
        return status
