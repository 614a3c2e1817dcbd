"""Packages that a job's script certainly imports are checked; uncertain imports are left to the script."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from phalanx.code.bundle import SendProgress
from phalanx.jobs.job_model import JobSpec
from phalanx.jobs.submission import Submission
from phalanx.launchers import load
from phalanx.runner.process import with_recipes
from phalanx.runner.starter.check import missing_packages, python_target
from phalanx.runner.starter.imports import Reader


def missing(root: Path, script: str, **modules: str) -> list[str]:
    for name, text in modules.items():
        path = root / f"{name.replace('_in_', '/')}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    (root / "train.py").write_text(script)
    reader = Reader(str(root))
    reader.read(str(root / "train.py"))
    return reader.missing


@pytest.mark.parametrize(
    "script",
    [
        "import nosuch",
        "import os, nosuch.deep",
        "from nosuch.deep import thing",
        "'doc'\nfrom __future__ import annotations\nimport json\nX = 1\ndef f(): print()\nimport nosuch",
        "import os\nos.environ['A'] = '1'\nimport nosuch",
        "from os import environ\nenviron['A']: str = '1'\nX = []\nX, Y = 1, 2\nimport nosuch",
        "try:\n    import other\nexcept ImportError:\n    other = None\nimport nosuch",
    ],
)
def test_an_import_that_is_sure_to_come_is_found_missing(tmp_path, script):
    assert missing(tmp_path, script) == ["nosuch"]


@pytest.mark.parametrize(
    "script",
    [
        "import json, sys\nimport xml.etree",
        "import subprocess\nsubprocess.run(['pip', 'install', 'nosuch'])\nimport nosuch",
        "import sys\nsys.path.insert(0, 'lib')\nimport nosuch",
        "import sys\nsys.path += ['lib']\nimport nosuch",
        "import sys\nsys.path[:0] = ['lib']\nimport nosuch",
        "import sys as system\nsystem.path[:0] = ['lib']\nimport nosuch",
        "import sys as system\nsystem.path = ['lib']\nimport nosuch",
        "from sys import path\npath[:0] = ['lib']\nimport nosuch",
        "import sys as system\nother = system.path\nother[:0], X = ['lib'], 1\nimport nosuch",
        "import sys as system\nfor system.path in [['lib']]:\n    pass\nimport nosuch",
        "import builtins as b\nb.__import__: object = None\nimport nosuch",
        "import xml.dom\nxml.dom.nosuch = 1\nimport nosuch",
        "try:\n    import nosuch\nexcept ImportError:\n    pass",
        "if False:\n    import nosuch",
        "def f():\n    import nosuch",
        "if not False:\n    raise SystemExit\nimport nosuch",
        "from . import nosuch",
    ],
)
def test_an_import_that_may_not_come_or_may_find_something_is_left_alone(tmp_path, script):
    assert missing(tmp_path, script) == []


def test_the_jobs_own_modules_are_followed(tmp_path):
    own = {"model": "import nosuch\nimport train", "pkg_in___init__": "import other", "pkg_in_part": "import third"}
    assert missing(tmp_path, "import model\nfrom pkg import part, name\nimport pkg.part", **own) == [
        "nosuch",
        "other",
        "third",
    ]
    assert missing(tmp_path, "import model\nimport nosuch", model="print()") == []


def warned(root: Path, *command: str) -> str:
    shown: list[SendProgress] = []
    Submission(JobSpec(command, "exec", directory=root), shown.append)
    return "\n".join(one.warning for one in shown if one.warning)


@pytest.mark.parametrize(
    ("script", "files", "warning"),
    [
        (
            "import utils",
            {".gitignore": "utils.py\n"},
            "utils stays here, as .gitignore says; a line such as `!utils.py`",
        ),
        (
            "import lib.utils",
            {".gitignore": "lib/\n"},
            "lib, lib/utils stay here, as .gitignore says; a line such as `!lib/`",
        ),
        ("from lib import utils", {"lib/.gitignore": "utils.py"}, "`!utils.py` in lib/.phalanxignore sends it"),
        ("import utils", {".phalanxignore": "utils*\n"}, "as .phalanxignore says; a line such as `!utils.py` in .phal"),
        ("import utils", {".gitignore": "lib/"}, ""),
        ("if X:\n    import utils", {".gitignore": "utils.py"}, ""),
        ("import (", {".gitignore": "utils.py"}, ""),
        ("from lib import VERSION, nosuch\nimport other", {"lib/.gitignore": "utils.py"}, ""),
        ("from lib import VERSION", {".gitignore": "lib/"}, "lib stays here"),
    ],
)
@pytest.mark.parametrize("command", [("python", "train.py"), ("python3", "-u", "-m", "train")])
def test_an_own_module_that_an_ignore_file_keeps_here_is_named(tmp_path, command, script, files, warning):
    (tmp_path / "lib").mkdir()
    for name in ("utils.py", "lib/utils.py", "lib/__init__.py"):
        (tmp_path / name).touch()
    for name, text in {**files, "train.py": script}.items():
        (tmp_path / name).write_text(text)
    got = warned(tmp_path, *command)
    assert warning in got
    assert bool(got) == bool(warning)


def test_links_that_lead_nowhere_on_the_nodes_are_reported_before_they_are_sent(tmp_path):
    (tmp_path / "code").mkdir()
    for name in ("a", "b", "c", "d"):
        (tmp_path / name).touch()
        (tmp_path / "code" / name).symlink_to(tmp_path / name)
    assert warned(tmp_path / "code", "true").startswith(f"a -> {tmp_path / 'a'}, b -> {tmp_path / 'b'}, c -> ")
    assert " and 1 more: " in warned(tmp_path / "code", "true")


def test_looking_for_own_modules_reads_no_fifo_and_nothing_outside(tmp_path):
    (tmp_path / "code").mkdir()
    (tmp_path / "secret.py").write_text("import kept\n")
    (tmp_path / "code/kept.py").touch()
    (tmp_path / "code/.gitignore").write_text("kept.py\n")
    (tmp_path / "code/linked.py").symlink_to("../secret.py")
    os.mkfifo(tmp_path / "code/pipe.py")
    for script in ("linked.py", "pipe.py", "../secret.py"):
        assert "kept" not in warned(tmp_path / "code", "python", script)


@pytest.mark.parametrize(
    ("command", "target"),
    [
        ("python train.py -m x", ["train.py"]),
        ("python3.11 -u -W ignore -m pkg.train", ["-m", "pkg.train"]),
        ("python -I train.py", []),
        ("python -c pass", []),
        ("python", []),
        ("bash x.sh", []),
    ],
)
def test_the_target_of_a_python_command_is_found(command, target):
    assert python_target(command.split()) == target


def test_no_answer_says_nothing_and_an_answer_names_all():
    assert missing_packages(["t.py"], b"", {}) == missing_packages(["t.py"], b"[]", {}) == ""
    text = missing_packages(["t.py"], b'["a", "b"]', {})
    assert text.startswith("no module named 'a', 'b' on {nodes}, which t.py imports")
    assert text.endswith("such as requirements.txt")


@pytest.mark.parametrize(("target", "place"), [(["src/t.py"], "src/a"), (["t.py"], "a"), (["-m", "pkg.t"], "a")])
def test_a_module_that_stays_on_the_users_machine_is_not_to_be_installed(target, place):
    kept = {place: "KEPT", "other": "OTHER"}
    assert missing_packages(target, b'["a"]', kept).endswith(f", which {target[-1]} imports: KEPT")
    both = missing_packages(target, b'["a", "b"]', kept)
    assert "KEPT; 'b' is neither" in both and "OTHER" not in both
    for message in (both, "no module named 'jax' on n, which t.py imports: KEPT"):
        assert ("--recipe" in with_recipes(load("jax"), message.replace("'b'", "'jax'"))) == (message is both)
