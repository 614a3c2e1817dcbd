"""A recipe's Python that no node has: uv brings it, here a program that does what uv does with its arguments."""

from __future__ import annotations

import fcntl
import os
import sys
from pathlib import Path

import pytest

from phalanx.runner.environments import managed_python
from phalanx.runner.environments.build_log import BuildLog
from phalanx.runner.environments.environment import CannotMakeError, _run
from phalanx.runner.environments.interpreters import Interpreter, ask
from phalanx.runner.files.job_record import Environment

WANTED = Environment("own", {}, (), ">=3.10,<3.12", variables={"UV_PYTHON_INSTALL_MIRROR": "file:///mirror"})
# `uv python install SPECIFIER` and `uv python find … SPECIFIER`, with this Python in place of a download.
_UV = f"""#!/bin/sh
case $2 in
  install) mkdir -p "$UV_PYTHON_INSTALL_DIR" && ln -sfn {sys.executable} "$UV_PYTHON_INSTALL_DIR/python"
           echo "$3 from $UV_PYTHON_INSTALL_MIRROR" >> "$UV_PYTHON_INSTALL_DIR/installed"
           echo "${{UV_CONFIG_FILE-none}}, without others: ${{UV_NO_CONFIG-no}}" > "$UV_PYTHON_INSTALL_DIR/settings" ;;
  find) echo "$UV_PYTHON_INSTALL_DIR/python" ;;
esac
"""


@pytest.fixture
def base() -> Interpreter:
    own = ask(sys.executable)
    assert own is not None
    return own


def make_uv(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_UV)
    path.chmod(0o755)


class Runs:
    """Runs programs as the environment's maker does, except python and pip, which would install uv."""

    def __init__(self, place: Path) -> None:
        self.names: list[str] = []
        self._uv = place / "uv/bin/uv"

    def __call__(self, argv, env, name) -> None:
        self.names.append(name)
        if name == "pip install uv":
            make_uv(self._uv)
        elif name == "uv python install":
            os.waitpid(os.posix_spawn(argv[0], argv, env), 0)


def test_the_heads_own_uv_installs_it_on_the_shared_directory(tmp_path, monkeypatch, base):
    make_uv(tmp_path / "bin/uv")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    runs = Runs(tmp_path)
    brought = managed_python.bring(str(tmp_path), WANTED, base, runs)
    assert brought is not None and brought.path == f"{tmp_path}/pythons/python"
    assert runs.names == ["uv python install"]
    assert (tmp_path / "pythons/installed").read_text() == ">=3.10,<3.12 from file:///mirror\n"


@pytest.mark.parametrize("is_there", [True, False])
def test_uv_reads_the_machines_own_settings_and_no_others(tmp_path, monkeypatch, base, is_there):
    settings = tmp_path / "uv.toml"
    if is_there:
        settings.write_text('python-downloads-json-url = "file:///mirror/downloads.json"\n')
    monkeypatch.setattr(managed_python, "SETTINGS", str(settings))
    make_uv(tmp_path / "bin/uv")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    managed_python.bring(str(tmp_path), WANTED, base, Runs(tmp_path))
    read = f"{settings}, without others: no" if is_there else "none, without others: 1"
    assert (tmp_path / "pythons/settings").read_text() == f"{read}\n"


def test_uv_is_installed_once_where_the_head_has_none(tmp_path, monkeypatch, base):
    monkeypatch.setattr(managed_python.shutil, "which", lambda _program: None)
    runs = Runs(tmp_path)
    for _ in range(2):
        assert managed_python.bring(str(tmp_path), WANTED, base, runs) is not None
    assert runs.names == ["python -m venv", "pip install uv", "uv python install", "uv python install"]


def test_a_job_that_waits_for_another_ones_python_gives_up_and_names_the_lock(tmp_path, monkeypatch, base, capfd):
    monkeypatch.setattr(managed_python, "_LOCKED_WITHIN_S", 0.2)
    with open(tmp_path / "pythons.lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(TimeoutError, match="another job has held it for") as caught:
            managed_python.bring(str(tmp_path), WANTED, base, Runs(tmp_path))
    assert caught.value.filename == f"{tmp_path}/pythons.lock"
    assert "another job installs a Python: waiting for it" in capfd.readouterr().out


def test_an_installer_that_does_not_end_is_ended_and_named(tmp_path):
    hangs = ["sh", "-c", "echo downloading; exec sleep 60"]
    with pytest.raises(CannotMakeError, match=r"uv python install did not end within 0.3 s\nUse a mirror"):
        _run(BuildLog(str(tmp_path)), hangs, dict(os.environ), "uv python install", "Use a mirror", timeout_s=0.3)


def test_a_python_that_does_not_run_here_is_none(tmp_path, monkeypatch, base):
    monkeypatch.setattr(managed_python.shutil, "which", lambda _program: "/bin/true")
    assert managed_python.bring(str(tmp_path), WANTED, base, Runs(tmp_path)) is None
