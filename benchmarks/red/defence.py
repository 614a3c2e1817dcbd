"""A defence: where it is in the code, how to remove it, and the test that then fails."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import ROOT


@dataclass(frozen=True)
class Edit:
    """A text that occurs once in a file, and its replacement."""

    file: str
    old: str
    new: str

    def apply(self, text: str) -> str:
        """Remove the defence from a file's text. Raises ValueError unless the old text occurs exactly once."""
        if text.count(self.old) != 1:
            raise ValueError(f"{self.file} has this {text.count(self.old)} times: {self.old}")
        return text.replace(self.old, self.new)


@dataclass(frozen=True)
class Defence:
    """One defence: `test` is pytest's arguments. If several mechanisms each stop the attack, `edits` removes all."""

    name: str
    test: str
    edits: tuple[Edit, ...]

    def applied(self, root: Path) -> dict[str, str]:
        """Return the changed files' texts by name. Raises ValueError when an edit no longer applies."""
        texts: dict[str, str] = {}
        for edit in self.edits:
            texts[edit.file] = edit.apply(texts.get(edit.file) or (root / edit.file).read_text())
        return texts


def defence(name: str, test: str, *edits: tuple[str, str, str]) -> Defence:
    """Make a defence with files in src/phalanx, or in localcloud/.

    `test` is in a directory of attacks, or else a path from the top.
    """
    file = test.split()[0].partition("::")[0]
    places = ("", "tests/attacks/", "localcloud/tests/attacks/")
    place = next((one for one in places if (ROOT / f"{one}{file}").is_file()), "")
    return Defence(name, f"{place}{test}", tuple(Edit(_path(file), *texts) for file, *texts in edits))


def _path(file: str) -> str:
    return f"localcloud/src/{file}" if file.startswith("localcloud/") else f"src/phalanx/{file}"
