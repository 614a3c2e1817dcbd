"""A prompt in this process: command lines are typed, and what they print is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from phalanx import cli


class Prompt:
    """In a directory of its own, which keeps the state too; `out` and `err` hold what the last line printed."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        monkeypatch.setenv("PHALANX_STATE_DIR", str(directory / "state"))
        monkeypatch.chdir(directory)
        self._capsys = capsys
        self.out = self.err = ""

    def __call__(self, *words: str) -> int:
        """Type `phalanx …`; gives the exit code."""
        status = cli.execute(list(words))
        self.out, self.err = self._capsys.readouterr()
        return status
