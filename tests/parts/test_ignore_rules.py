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


def left_by_phalanx(root: Path) -> set[str]:
    return {entry.name for entry in scan(root).entries if entry.is_file}


@pytest.fixture(autouse=True)
def git_without_settings(monkeypatch):
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)


@pytest.mark.parametrize("seed", range(20))
def test_git_agrees(tmp_path, seed):
    make_repository(tmp_path, random.Random(seed))
    rules = {str(path.relative_to(tmp_path)): path.read_bytes() for path in tmp_path.rglob(".gitignore")}
    assert left_by_phalanx(tmp_path) == left_by_git(tmp_path), rules


# Every name below every directory, and what people write in ignore files.
FILES = (b"x", b"x.py", b"x.txt", b"#x", b"!x", b" x", b"x ", b"x\\", b"\xff", "ü".encode(), b"[x]", b"X")
DIRECTORIES = (b"", b"a", b"a/b", b"a/x", b"ab/b/a", b"b/a/b", b"build", b"a/build", b"\xff")
RULES = (
    b"x",
    b"/x",
    b"x/",
    b"a/",
    b"/a/",
    b"a/x",
    b"a/*",
    b"a/**",
    b"**/a",
    b"**/a/",
    b"a/**/x",
    b"**/b/**",
    b"/**",
    b"**",
    b"*.py\n!x.py",
    b"*\n!*/\n!*.py",
    b"*\n!a/\n!a/**",
    b"a\n!a/x",
    b"a/*\n!a/b\n!a/b/x",
    # A directory is not in itself.
    b"a\n!a/**",
    b"/*\n!/a/**",
    # git compares the text before the first sign separately, and then sees `**/` at the start of a pattern.
    b"a**/b",
    b"/ab**/a",
    b"a**b/a",
    b"a?**/b",
    b"bui**",
    b"x ",
    b"x\\ ",
    b"x\\  ",
    b" x",
    b"x\t",
    b"\\#x\n#x",
    b"\\!x",
    b"!x\nx",
    b"!",
    b"/",
    b"\\",
    b"x\\\\",
    b"\\x",
    b"x\\",
    b"[x]",
    b"\\[x\\]",
    b"[[x]",
    b"[]-x]",
    b"[!a-w]",
    b"[^x]",
    b"[a-",
    b"[z-a]",
    b"[[:upper:]]",
    b"[[:space:]]x",
    b"a[/]b",
    b"a?b",
    b"x\r\na/\r\n",
    b"x\r\n",
    b"\xef\xbb\xbfx",
    b"\xff",
    b"?",
    b"??",
    "ü".encode(),
    b"[\xc0-\xff]",
)


@pytest.mark.parametrize("rules", RULES, ids=repr)
def test_git_agrees_on_rules_that_people_write(tmp_path, rules):
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    directories = [tmp_path / os.fsdecode(name) for name in DIRECTORIES]
    for directory in directories:
        directory.mkdir(parents=True, exist_ok=True)
    for path in (directory / os.fsdecode(name) for directory in directories for name in FILES):
        if not path.exists():
            path.touch()
    (tmp_path / ".gitignore").write_bytes(rules + b"\n")
    # Rules of a nested file decide before those above, also for what those above send after all.
    (tmp_path / "ab" / ".gitignore").write_bytes(b"!x\n/b/x.py\n")
    assert left_by_phalanx(tmp_path) == left_by_git(tmp_path)


def test_git_agrees_on_a_repository_in_a_repository(tmp_path):
    for place in (tmp_path, tmp_path / "module"):
        subprocess.run(["git", "init", "-q", str(place)], check=True)
        (place / "a.log").touch()
        (place / "own").touch()
    (tmp_path / ".gitignore").write_text("*.log\n")
    (tmp_path / "module/.gitignore").write_text("own\n")
    inside = {f"module/{name}" for name in left_by_git(tmp_path / "module")}
    assert inside == {name for name in left_by_phalanx(tmp_path) if name.startswith("module/")}
