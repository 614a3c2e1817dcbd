""".gitignore excludes what git itself excludes, for patterns of every kind in nested files."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import pytest

from phalanx.code.code_tree import scan

NAMES = ("a", "b", "ab", "aab", "c", "a b", "[ab]", "*", "ü", "-")
PIECES = (
    "a",
    "b",
    "ab",
    ".",
    "*",
    "**",
    "***",
    "?",
    "/",
    "/",
    "!",
    "#",
    "\\",
    "[ab]",
    "[!a]",
    "[^b]",
    "[a-c]",
    "[c-a]",
)
PIECES += ("[[:alpha:]]", "[]a]", "[a", "\\*", " ", "-", "[a-]", "[\\]]", "ü", "[[:foo:]]", "[/]", "**/", "/**", "/**/")


def make_repository(root: Path, dice: random.Random) -> None:
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    for _ in range(25):
        path = root.joinpath(*(dice.choice(NAMES) for _ in range(dice.randint(1, 4))))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        except OSError:
            continue  # a file has the directory's name
    directories = sorted(path for path in root.rglob("*") if path.is_dir() and ".git" not in path.parts)
    for directory in (root, *dice.sample(directories, 2)):
        lines = ["".join(dice.choices(PIECES, k=dice.randint(1, 5))) for _ in range(dice.randint(1, 4))]
        end = dice.choice(("", "\n", " \n", "\r\n"))
        (directory / ".gitignore").write_bytes(("\n".join(lines) + end).encode())


def left_by_git(root: Path) -> set[str]:
    argv = ["git", "-C", str(root), "ls-files", "-o", "--exclude-standard", "-z"]
    listed = subprocess.run(argv, capture_output=True, check=True).stdout
    return {os.fsdecode(name) for name in listed.split(b"\0") if name}


@pytest.mark.parametrize("seed", range(20))
def test_git_agrees(tmp_path, monkeypatch, seed):
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)
    make_repository(tmp_path, random.Random(seed))
    ours = {entry.name for entry in scan(tmp_path).entries if entry.is_file}
    rules = {str(path.relative_to(tmp_path)): path.read_bytes() for path in tmp_path.rglob(".gitignore")}
    assert ours == left_by_git(tmp_path), rules
