"""What the making of a cluster says beside its progress."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Note:
    """A sentence of information for the user."""

    text: str

    def __str__(self) -> str:
        return self.text
