"""The documents stay correct: every local link is valid, and every `phalanx` command in them exists."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from phalanx.cli import cli

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(path for place in ("*.md", "docs/**/*.md", "examples/**/*.md") for path in ROOT.glob(place))
LINK = re.compile(r"\[[^\]]*\]\((?!https?:|mailto:)([^)#\s]*)(#[^)\s]*)?\)|src=\"(?!https?:)([^\"]+)\"")
COMMAND = re.compile(r"(?:^|[`$(] ?)phalanx ((?:local )?[a-z][a-z-]*)", re.MULTILINE)


def without_quoted_code(text: str) -> str:
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def heading_anchors(text: str) -> set[str]:
    """Return GitHub's anchors of headings: lower case, hyphens for spaces, without other punctuation."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_local_links_lead_somewhere(document: Path) -> None:
    for target, anchor, source in LINK.findall(without_quoted_code(document.read_text())):
        path = (document.parent / (target or source)) if target or source else document
        assert path.exists(), f"{document.name} links to {target or source}"
        if anchor:
            assert anchor[1:] in heading_anchors(path.read_text()), f"{document.name} links to {target}{anchor}"


def exists(path: list[str]) -> bool:
    """Whether `phalanx WORD [WORD]` is a command; `local status` is in a group."""
    command: click.Command | None = cli
    for word in path:
        if not isinstance(command, click.Group):
            break
        command = command.get_command(click.Context(command), word)
    return command is not None


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_exist(document: Path) -> None:
    named = COMMAND.findall(document.read_text())
    assert [command for command in named if not exists(command.split())] == []


def test_the_readme_shows_the_daily_commands() -> None:
    named = set(COMMAND.findall((ROOT / "README.md").read_text()))
    assert {"init", "up", "run", "ssh", "logs", "down"} <= named


SOURCE = "".join(path.read_text() for path in sorted((ROOT / "src").rglob("*.py")))
QUOTED_MESSAGES = re.findall(r"^### `(.+)`$", (ROOT / "docs/troubleshooting.md").read_text(), re.MULTILINE)


def without_line_breaks(source: str) -> str:
    """Join the strings in Python source that are written over several lines."""
    return re.sub(r"\"\s*\n\s*f?\"", "", source)


@pytest.mark.parametrize("message", QUOTED_MESSAGES)
def test_the_messages_of_the_troubleshooting_page_exist(message: str) -> None:
    source = without_line_breaks(SOURCE)
    pieces = [piece.strip(" '") for piece in message.split("…")]
    assert [piece for piece in pieces if piece not in source] == []
