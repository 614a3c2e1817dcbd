"""Which files of a directory are sent with a job, and what is not a directory of code."""

from __future__ import annotations

from pathlib import Path

import pytest
from error_codes import raises_code

from phalanx.code import code_tree
from phalanx.errors import JobError


def make(root: Path, ignored: str = "", *names: str) -> None:
    """Create empty files, and a .gitignore with these lines."""
    (root / ".gitignore").write_text(ignored)
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def names(root: Path) -> list[str]:
    return [entry.name for entry in code_tree.scan(root).entries]


def test_generated_and_local_files_are_not_sent(tmp_path):
    for name in (
        ".git/HEAD",
        ".venv/x",
        "node_modules/x",
        "__pycache__/x",
        "env/pyvenv.cfg",
        "keep/a.pyc",
        "keep/a.py",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert names(tmp_path) == ["keep", "keep/a.py"]


def test_ignore_files_hold_below_their_directory_and_phalanxignore_overrules(tmp_path):
    make(tmp_path, "*.pt\ndata/\n/only_here\n", "sub/best.pt", "sub/other.pt", "sub/only_here", "data/x", "only_here")
    (tmp_path / "sub" / ".gitignore").write_text("!best.pt\n")
    assert names(tmp_path) == [".gitignore", "sub", "sub/.gitignore", "sub/best.pt", "sub/only_here"]
    (tmp_path / ".phalanxignore").write_text("!data/\nsub/only*\n")
    assert names(tmp_path)[2:] == ["data", "data/x", "sub", "sub/.gitignore", "sub/best.pt"]


def test_the_rest_of_the_repositorys_rules_apply_unless_they_exclude_all(tmp_path):
    (tmp_path / ".git").mkdir()
    make(tmp_path, "*.log\n/code/big\n", "code/big", "code/a.log", "code/a.py")
    assert names(tmp_path / "code") == ["a.py"]
    (tmp_path / ".gitignore").write_text("code\n")
    assert names(tmp_path / "code") == ["a.log", "a.py", "big"]


def test_words_that_name_what_is_left_out_are_found(tmp_path):
    make(tmp_path, "data/\n*.csv\n", "data/x", "a.csv", "a.py")
    tree = code_tree.scan(tmp_path)
    arguments = ("python", "a.py", "--data=./data", "data/x", "a.csv", "dat", "", "data/none", "data/x/y", "none.csv")
    assert tree.left_out_of(arguments) == {"--data=./data": "data/", "data/x": "data/", "a.csv": "a.csv"}


def test_the_file_that_keeps_something_here_is_known(tmp_path):
    (tmp_path / ".git").mkdir()
    make(tmp_path, "*.csv\n/code/of-above\n", "code/a.csv", "code/b.csv", "code/sub/c", "code/of-above")
    (tmp_path / "code/.gitignore").write_text("!b.csv\n")
    (tmp_path / "code/.phalanxignore").write_text("b.csv\n")
    (tmp_path / "code/sub/.phalanxignore").write_text("*\n")
    here = {"a.csv": "../.gitignore", "b.csv": ".phalanxignore", "of-above": "../.gitignore"}
    kept = code_tree.scan(tmp_path / "code").left_out
    assert {**kept} == {**here, "sub/.phalanxignore": "sub/.phalanxignore", "sub/c": "sub/.phalanxignore"}


def test_git_s_rules_end_where_another_repository_begins_and_phalanx_s_do_not(tmp_path):
    make(tmp_path, "*.log\nof-git/\n", "module/a.log", "module/b.ckpt", "module/own", "module/of-git/c", "of-git/d")
    (tmp_path / ".phalanxignore").write_text("*.ckpt\n")
    (tmp_path / "module/.git").write_text("gitdir: ../.git/modules/module\n")
    (tmp_path / "module/.gitignore").write_text("own\n")
    below = [name for name in names(tmp_path) if name.startswith("module/")]
    assert below == ["module/.gitignore", "module/a.log", "module/of-git", "module/of-git/c"]


def test_links_that_lead_out_of_the_code_are_known(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/x").touch()
    make(tmp_path, "", "code/a")
    links = {
        "data": "../data",
        "deep": str(tmp_path / "data/x"),
        "inside": "a",
        "self": "../code/a",
        "efs": "/efs/none",
    }
    for name, target in {**links, "null": "/dev/null", "python": "/usr/bin/env", "loop": "loop"}.items():
        (tmp_path / "code" / name).symlink_to(target)
    assert code_tree.scan(tmp_path / "code").links_out() == {"data": "../data", "deep": str(tmp_path / "data/x")}


def test_too_much_is_refused_as_soon_as_it_is_counted(tmp_path, monkeypatch):
    (tmp_path / "data.bin").write_bytes(b"x" * 3000)
    (tmp_path / "later").mkdir()
    monkeypatch.setattr(code_tree, "MAX_BYTES", 2000)
    with raises_code("code-too-large", "more than 2.0 KiB", "'data.bin' (2.9 KiB)"):
        code_tree.scan(tmp_path)
    monkeypatch.setattr(code_tree, "MAX_BYTES", 4000)
    monkeypatch.setattr(code_tree, "MAX_FILES", 1)
    with pytest.raises(JobError, match="more than 1 files"):
        code_tree.scan(tmp_path)


def test_patterns_that_take_long_are_refused(tmp_path, monkeypatch):
    """A stranger's repository may have 100,000 names and a .gitignore of a MiB."""
    make(tmp_path, "\n".join(f"*a{number}*b" for number in range(1000)), *(f"{number:060}" for number in range(100)))
    assert len(names(tmp_path)) == 101
    monkeypatch.setattr(code_tree, "_LONGEST_CPU_S", 0.01)
    with raises_code("code-too-large", "0.01 s", str(tmp_path)):
        code_tree.scan(tmp_path)


def test_what_is_not_a_directory_of_code_is_refused_at_once(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for place, message in (
        ("/", "the whole machine"),
        (tmp_path, "your home"),
        (tmp_path / "none", "is not a directory"),
    ):
        with pytest.raises(JobError, match=message):
            code_tree.scan(Path(place))
