"""What a defence is: where it stands, how it is taken out, and the test that fails then."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Edit:
    """A text that a file has once, and what is put in its place."""

    file: str
    old: str
    new: str

    def apply(self, text: str) -> str:
        """The file's text without the defence. Raises ValueError unless it has the old text once."""
        if text.count(self.old) != 1:
            raise ValueError(f"{self.file} has this {text.count(self.old)} times: {self.old}")
        return text.replace(self.old, self.new)


@dataclass(frozen=True)
class Defence:
    """`test` is what pytest is given. Where several things stop the attack, each alone, `edits` takes out all."""

    name: str
    test: str
    edits: tuple[Edit, ...]

    def applied(self, root: Path) -> dict[str, str]:
        """The changed files' texts, by their names. Raises ValueError when one is not as it was."""
        texts: dict[str, str] = {}
        for edit in self.edits:
            texts[edit.file] = edit.apply(texts.get(edit.file) or (root / edit.file).read_text())
        return texts


def defence(name: str, test: str, *edits: tuple[str, str, str]) -> Defence:
    """The files are those of src/phalanx, the test is one of tests/attacks."""
    return Defence(name, f"tests/attacks/{test}", tuple(Edit(f"src/phalanx/{file}", *texts) for file, *texts in edits))
