"""A cloned repository: its author reads no file of this machine and runs nothing on it. Its code runs on the nodes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from terminals import Terminal, a_terminal, assert_nothing_is_left

pytestmark = pytest.mark.cluster

SPEC = "name: guest\ncloud: local\nnodes: 1\nmin: 1\ntype: c5.large\nshared: /efs\nkeep: no\n"
# Modules that phalanx and the local cloud import from elsewhere, or that Python imports by itself.
MODULES = ("phalanx/__init__", "localcloud/__init__", "argparse", "moto", "json", "yaml", "sitecustomize", "pip")
SECRET = "not for the author's eyes"
WITHIN_S = 60


@pytest.fixture(scope="module")
def terminal() -> Iterator[Terminal]:
    """A cluster that was brought up in a directory of the author's, with modules of names that phalanx imports."""
    with a_terminal(SPEC) as terminal:
        code = f"open({str(terminal.state.parent / 'ran')!r}, 'a').write(__name__)\n"
        for module in MODULES:
            path = terminal.directory / f"{module}.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(code)
        terminal.phalanx("up", timeout_s=300)
        yield terminal
        processes = terminal.local_cloud_processes()
        terminal.phalanx("down", "--yes")
        assert_nothing_is_left(terminal, processes)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file of the user's, outside the repository."""
    path = tmp_path / "id_ed25519"
    path.write_text(f"{SECRET}\n")
    return path


@pytest.fixture
def code(tmp_path: Path) -> Path:
    (tmp_path / "code").mkdir()
    return tmp_path / "code"


def run(terminal: Terminal, code: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    argv = ("run", "--directory", str(code), "--launcher", "exec", *arguments, "--", "true")
    with terminal.start(*argv, **env) as process:
        try:
            shown, _ = process.communicate(timeout=WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return subprocess.CompletedProcess(argv, process.returncode, shown)


def is_anywhere(text: str, place: Path) -> bool:
    return subprocess.run(["grep", "-rqaF", "-D", "skip", "--", text, str(place)], check=False).returncode == 0


def test_modules_of_the_repository_do_not_run_on_this_machine(terminal, code):
    assert run(terminal, terminal.directory).returncode == 0
    terminal.phalanx("status")
    terminal.phalanx("local", "status")
    assert not (terminal.state.parent / "ran").exists()


def test_a_python_path_of_the_repository_does_not_lead_the_local_cloud_to_its_modules(code):
    # As direnv sets it. What the command line itself imports is not safe from it (docs/security.md).
    for module in ("moto/__init__", "werkzeug", "localcloud/__init__"):
        path = code / f"{module}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"open({str(code / 'ran')!r}, 'a').write(__name__)\n")
    path = os.pathsep.join(filter(None, (str(code), os.environ.get("PYTHONPATH"))))
    with a_terminal(SPEC) as terminal:
        for command in ("start", "weather", "image ls", "status"):
            with terminal.start("local", *command.split(), PYTHONPATH=path) as process:
                shown, _ = process.communicate(timeout=WITHIN_S)
            assert not (code / "ran").exists()
            assert process.returncode == 0, shown


@pytest.mark.parametrize(
    "lines",
    [
        "-r .a.txt\n",
        "-c .a.txt\n",
        "numpy \\\n# a comment\n-r .a.txt\n",
        "--pre -r .a.txt\n",
        "--requ=.a.txt\n",
        "-r 'sub/../.a.txt'\n",
    ],
)
def test_requirements_include_no_file_of_this_machine(terminal, code, secret, lines):
    (code / "sub").mkdir()
    (code / "requirements.txt").write_text(lines)
    (code / ".a.txt").symlink_to(secret)
    done = run(terminal, code)
    assert done.returncode == 2, done.stdout
    assert SECRET not in done.stdout
    assert not is_anywhere(SECRET, terminal.state)


def test_requirements_that_are_the_environment_of_phalanx_are_not_read(terminal, code):
    (code / "requirements.txt").symlink_to("/proc/self/environ")
    done = run(terminal, code, KEY=SECRET)
    assert done.returncode == 2, done.stdout
    assert not is_anywhere(SECRET, terminal.state)


def test_requirements_include_neither_git_s_settings_nor_an_ignored_file_with_secrets(terminal, code):
    (code / ".git").mkdir()
    (code / ".git/config").write_text(f"[remote]\nurl = {SECRET}\n")
    (code / ".gitignore").write_text(".env\n")
    (code / ".env").write_text(f"PASSWORD={SECRET}\n")
    (code / "requirements.txt").write_text("-r .git/config\n-r .env\n")
    done = run(terminal, code)
    assert done.returncode == 2, done.stdout
    assert ".git/config" in done.stdout and ".env:1" in done.stdout
    assert SECRET not in done.stdout
    assert not is_anywhere(SECRET, terminal.state)


@pytest.mark.parametrize("option", ["--env-file={}", "--secret=KEY=@{}"])
@pytest.mark.parametrize("is_link_to", ["the environment", "a secret", "git's settings"])
def test_a_file_of_variables_is_the_repository_s_own(terminal, code, secret, option, is_link_to):
    (code / ".git").mkdir()
    (code / ".git/config").write_text(f"A={SECRET}\n")
    secret.write_text(f"A={SECRET}\n")
    places = {"the environment": "/proc/self/environ", "a secret": secret, "git's settings": ".git/config"}
    (code / ".env").symlink_to(places[is_link_to])
    done = run(terminal, code, option.format(code / ".env"), KEY=SECRET)
    assert done.returncode == 2, done.stdout
    assert not is_anywhere(SECRET, terminal.state)


@pytest.mark.parametrize("option", ["--env-file={}", "--secret=KEY=@{}"])
def test_a_file_of_variables_that_is_a_pipe_is_refused(terminal, code, option):
    (code / ".git").mkdir()
    os.mkfifo(code / ".env")
    assert run(terminal, code, option.format(code / ".env")).returncode == 2


@pytest.mark.parametrize("name", [".gitignore", ".phalanxignore", "requirements.txt", "phalanx.yaml"])
@pytest.mark.parametrize("what", ["fifo", "endless"])
def test_a_file_without_an_end_is_refused(terminal, code, name, what):
    if what == "fifo":
        os.mkfifo(code / name)
    else:
        (code / name).symlink_to("/dev/zero")
    arguments = ("--file", str(code / name)) if name == "phalanx.yaml" else ()
    if arguments:
        with terminal.start("plan", *arguments) as process:
            process.communicate(timeout=WITHIN_S)
        assert process.returncode == 2
    else:
        assert run(terminal, code).returncode == 2


@pytest.mark.parametrize("kind", ["link", "above", "absolute", "folder"])
def test_a_data_set_takes_no_file_of_this_machine(terminal, code, secret, kind):
    names = {"link": "there", "above": f"../{secret.name}", "absolute": str(secret)}
    if kind == "folder":
        (code / "cats").mkdir()
        (code / "cats/1.jpg").symlink_to(secret)
        source = code
    else:
        (code / "there").symlink_to(secret)
        source = code / "labels.csv"
        source.write_text(f"path,label\n{names[kind]},1\n")
    out = code.parent / "shards"
    done = terminal.phalanx("data", "shard", str(source), str(out), check=False)
    assert done.returncode != 0
    assert secret.name in done.stderr or "there" in done.stderr or "1.jpg" in done.stderr
    assert not is_anywhere(SECRET, out)
