"""A package that changes under the same name: a rebuilt wheel, a changed directory, a branch that moved."""

from __future__ import annotations

import json
import os
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from phalanx.jobs.environments import from_requirements
from phalanx.runner.environments import environment, node_copy
from phalanx.runner.files.job_record import JobRecord

PROJECT = '[project]\nname = "tiny"\nversion = "1.0"\n'


class Shared:
    """A shared directory, on which jobs have their environments made by this machine's pip."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._jobs = 0

    def environment(self, *lines: str, **build_env: str) -> str:
        """Return the environment of a job with this requirements.txt."""
        result = self.result(*lines, **build_env)
        assert "path" in result, result
        return result["path"]

    def result(self, *lines: str, **build_env: str) -> dict[str, str]:
        self._jobs += 1
        code, job = self.home / "code", self.home / f".phalanx/jobs/{self._jobs}"
        for directory in (code, job):
            directory.mkdir(parents=True, exist_ok=True)
        (code / "requirements.txt").write_text("".join(f"{line}\n" for line in lines))
        wanted = replace(from_requirements(code / "requirements.txt"), variables=build_env)
        record = JobRecord(("true",), id=str(self._jobs), environment=wanted)
        (job / "job.json").write_text(json.dumps(record.to_record()))
        umask = os.umask(0o022)
        environment.bring(str(job))
        os.umask(umask)
        return json.loads((job / "environment.json").read_text())


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shared:
    """Environments are only named here, except where a test says so."""
    monkeypatch.setattr(node_copy, "HOME", str(tmp_path / "none"))
    monkeypatch.setattr(environment, "_make_alone", note_as_made)
    return Shared(tmp_path)


def note_as_made(path: str, *_: object) -> None:
    Path(path).mkdir(parents=True, exist_ok=True)
    (Path(path) / node_copy.COMPLETE).write_text("{}")


def write_wheel(directory: Path, word: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    place = directory / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(place, "w") as wheel:
        wheel.writestr("tiny.py", f"WORD = {word!r}\n")
        wheel.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        wheel.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("tiny-1.0.dist-info/RECORD", "")
    return place


def word_of(place: str) -> str:
    argv = [f"{place}/bin/python", "-c", "import tiny; print(tiny.WORD)"]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()


def test_a_job_runs_the_rebuilt_wheel(tmp_path, monkeypatch):
    monkeypatch.setattr(node_copy, "HOME", str(tmp_path / "none"))
    shared = Shared(tmp_path)
    (tmp_path / "packages.txt").write_text(f"{write_wheel(tmp_path / 'w', 'old')}\n")
    lines = ("--no-index", f"-r {tmp_path}/packages.txt")
    assert word_of(shared.environment(*lines)) == "old"
    write_wheel(tmp_path / "w", "new")
    assert word_of(shared.environment(*lines)) == "new"


@pytest.mark.parametrize(
    "line",
    [
        "{w}/tiny-1.0-py3-none-any.whl",
        "{w}/tiny-1.0-py3-none-any.whl[extra] ; python_version > '3'",
        "file://{w}/tiny-1.0-py3-none-any.whl#sha256=0",
        "tiny @ file://{w}/tiny-1.0-py3-none-any.whl",
        "tiny[extra]@file://{w}/tiny-1.0-py3-none-any.whl ; python_version > '3'",
        "file:{w}/tiny%2D1.0-py3-none-any.whl  # ours",
        "--find-links={w}\ntiny==1.0",
        "-f{w}\ntiny==1.0",
        "-f \\\n  '{w}'\ntiny==1.0",
        "--no-index -f file://{w}/page.html\ntiny==1.0",
        "-i file://{w}\ntiny==1.0",
        "file://${{PLACE}}/tiny-1.0-py3-none-any.whl",
    ],
)
def test_a_rebuilt_package_is_another_environment_and_the_old_one_again_the_old(shared, monkeypatch, line):
    directory = shared.home / "w"
    monkeypatch.setenv("PLACE", str(directory))
    old = write_wheel(directory, "old")
    kept = old.read_bytes()
    lines = line.format(w=directory).splitlines()
    before = shared.environment(*lines)
    assert shared.environment(*lines) == before
    write_wheel(directory, "new")
    assert shared.environment(*lines) != before
    old.write_bytes(kept)
    assert shared.environment(*lines) == before


@pytest.mark.parametrize("line", ["-r {r}", "-c file://{r}\ntiny", "--constraint={r}\ntiny"])
@pytest.mark.parametrize(
    "inside", ["{w}", "tiny @ file://{w}", "-c more.txt", "\ufeff-cmore.txt", "-f \\\r\n../w\r\ntiny\r\n"]
)
def test_what_a_file_of_the_cluster_names_counts_by_its_content_too(shared, line, inside):
    wheel, listed = write_wheel(shared.home / "w", "old"), shared.home / "lists/packages.txt"
    listed.parent.mkdir()
    listed.write_text(inside.format(w=wheel) + "\n-r packages.txt\n", newline="")
    (listed.parent / "more.txt").write_text(f"{wheel}\n")
    lines = line.format(r=listed).splitlines()
    before = shared.environment(*lines)
    assert shared.environment(*lines) == before
    write_wheel(shared.home / "w", "new")
    assert shared.environment(*lines) != before


def test_a_version_in_a_file_of_the_cluster_counts_and_so_does_a_list_of_the_builds_variables(shared, repository):
    listed = shared.home / "packages.txt"
    found = set()
    for text in ("tiny==1", "tiny==2", "tiny==2\n\udcff", f"git+file://{repository}@main"):
        listed.write_text(text, errors="surrogateescape")
        found.add(shared.environment(f"-r {listed}"))
    git(repository, "commit", "-q", "--allow-empty", "-m", "second")
    found.add(shared.environment(f"-r {listed}"))
    assert len(found) == 5
    pinned = {"PIP_CONSTRAINT": str(listed)}
    before = shared.environment("tiny", **pinned)
    listed.write_text("tiny==3")
    assert shared.environment("tiny", **pinned) != before


@pytest.mark.parametrize("kind", ["fifo", "large", "many", "missing", "directory"])
def test_what_is_no_list_is_named_and_never_waited_for(shared, kind):
    listed = shared.home / "packages.txt"
    if kind == "fifo":
        os.mkfifo(listed)
    elif kind == "large":
        listed.write_bytes(b"#" * (5 << 20))
    elif kind == "directory":
        listed.mkdir()
    elif kind == "many":
        for number in range(200):
            (shared.home / f"{number}.txt").write_text(f"-r {number + 1}.txt\n")
        listed.write_text("-r 0.txt\n")
    result = shared.result(f"-r {listed}")
    # pip says itself what is wrong with the last two.
    assert ("include" in result.get("problem", "")) == (kind not in ("missing", "directory"))


@pytest.mark.parametrize("line", ["{d}", "-e {d}", "--editable=file://{d}#egg=tiny", "tiny @ file://{d}", "{d}[extra]"])
def test_a_directory_counts_by_its_sources_and_not_by_what_a_build_leaves(shared, line):
    directory = shared.home / "tiny"
    (directory / "src/tiny/__pycache__").mkdir(parents=True)
    (directory / "pyproject.toml").write_text(PROJECT)
    source = directory / "src/tiny/__init__.py"
    source.write_text("WORD = 'old'\n")
    lines = line.format(d=directory)
    before = shared.environment(lines)
    for left in ("build/lib/tiny.py", "src/tiny.egg-info/PKG-INFO", "src/tiny/__pycache__/tiny.pyc", ".git/HEAD"):
        (directory / left).parent.mkdir(parents=True, exist_ok=True)
        (directory / left).write_text("left")
    assert shared.environment(lines) == before
    source.write_text("WORD = 'new'\n")
    assert shared.environment(lines) != before


def test_a_file_that_has_not_changed_is_not_read_again(shared, monkeypatch):
    wheel = write_wheel(shared.home / "w", "old")
    monkeypatch.setattr("time.time", lambda: wheel.stat().st_ctime + 3600)
    before = shared.environment(str(wheel))
    monkeypatch.setattr(
        "phalanx.runner.environments.package_contents._sha256", lambda _: pytest.fail("it was read again")
    )
    assert shared.environment(str(wheel)) == before


def git(place: Path, *arguments: str) -> str:
    own = {"GIT_CONFIG_GLOBAL": os.devnull, "HOME": str(place), "PATH": os.environ["PATH"]}
    named = ("-c", "user.name=a", "-c", "user.email=a@h.test", "-c", "init.defaultBranch=main")
    argv = ["git", *named, "-C", str(place), *arguments]
    return subprocess.run(argv, env=own, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    place = tmp_path / "repository"
    place.mkdir()
    git(place, "init", "-q")
    git(place, "commit", "-q", "--allow-empty", "-m", "first")
    git(place, "tag", "-a", "v1", "-m", "first")
    return place


@pytest.mark.parametrize("line", ["git+file://{r}@main#egg=tiny", "tiny @ git+file://{r}", "-e git+file://{r}@main"])
def test_a_branch_that_moved_is_another_environment_and_its_commit_is_printed(shared, repository, capsys, line):
    line = line.format(r=repository)
    before = shared.environment(f"{line}  # git+file:///none@main")
    first = git(repository, "rev-parse", "HEAD")
    assert f"is commit {first}" in capsys.readouterr().out
    git(repository, "commit", "-q", "--allow-empty", "-m", "second")
    assert shared.environment(line) != before
    assert f"is commit {git(repository, 'rev-parse', 'HEAD')}" in capsys.readouterr().out


def test_a_tag_is_its_commit_and_what_is_installed_is_that_commit(shared, repository, monkeypatch):
    made = []
    monkeypatch.setattr(environment, "_make_alone", lambda path, wanted, *_: (made.append(wanted), note_as_made(path)))
    first = git(repository, "rev-parse", "HEAD")
    git(repository, "commit", "-q", "--allow-empty", "-m", "second")
    shared.environment(f"tiny @ git+file://{repository}@v1#subdirectory=a ; python_version > '3'")
    text = f"tiny @ git+file://{repository}@{first}#subdirectory=a ; python_version > '3'\n"
    assert made[0].files["requirements.txt"] == text


def test_a_comment_takes_no_line_with_it(shared, repository, monkeypatch):
    made = []
    monkeypatch.setattr(environment, "_make_alone", lambda path, wanted, *_: (made.append(wanted), note_as_made(path)))
    lines = ["# what it needs", "numpy  # for arrays", "", "#", "tiny"]
    shared.environment(*lines, f"git+file://{repository}@v1  # pinned", "another")
    text = made[0].files["requirements.txt"]
    assert text.splitlines()[:5] == lines and text.endswith("  # pinned\nanother\n")


def test_a_commit_is_not_asked_for(shared):
    assert shared.environment(f"git+file:///none@{'a' * 40}")


@pytest.mark.parametrize("name", ["none", "main"])
def test_a_name_that_git_does_not_know_or_that_nobody_answers_for_is_a_problem(shared, repository, name):
    where = repository if name == "none" else "/none"
    problem = shared.result(f"git+file://{where}@{name}")["problem"]
    assert name in problem and len(problem.splitlines()) == 2


def test_no_password_is_printed(shared, monkeypatch, tmp_path, capsys):
    program = tmp_path / "bin/git"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\n[ "$4 $3" = "main https://me:secret@h.test/a.git" ] && printf "{"b" * 40}\\trefs/heads/main\\n"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("TOKEN", "me:secret")
    shared.environment("git+https://${TOKEN}@h.test/a.git@main")
    said = capsys.readouterr().out
    assert "b" * 40 in said and "secret" not in said
    assert "secret" not in shared.result("git+https://me:secret@h.test/b.git@main")["problem"]
