"""What environments are made from: recipes as shipped, requirements as users write them, Pythons as specified."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from error_codes import raises_code

from phalanx.errors import JobError
from phalanx.jobs.environments import choose, from_requirements, recipe, recipe_names
from phalanx.launchers import LAUNCHERS, load
from phalanx.runner.environments import environment
from phalanx.runner.environments.interpreters import Interpreter, allows
from phalanx.runner.files.job_record import JobRecord


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_names_a_launcher_a_python_and_exact_versions(name):
    one = recipe(name)
    assert one.launcher in LAUNCHERS
    # The tests' nodes have Python 3.11; ChainerCV no longer compiles there.
    assert allows(one.environment.python, (3, 10, 13) if name == "chainercv" else (3, 11, 7))
    assert one.summary
    assert one.environment.check
    assert {file for step in one.environment.steps for file in step[-1:]} <= set(one.environment.files)


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_takes_what_its_lock_names_alone(name):
    environment = recipe(name).environment
    text = "".join(environment.files.values())
    entries = [line for line in text.splitlines() if line[:1].isalnum()]
    assert all("==" in entry for entry in entries)
    if "torch==2.13.0" in text:
        assert "torch==2.13.0" in environment.files["constraints.txt"]
        return
    assert text.count("--hash=sha256:") >= len(entries)
    for step in environment.steps:
        assert {"--require-hashes", "--no-deps"} < set(step)
        # A package without a hash must not be built.
        assert ("--no-build-isolation" in step) != (":all:" in step)


def test_every_recipe_that_a_launcher_names_is_shipped():
    assert {name for launcher in LAUNCHERS for name in load(launcher).RECIPES} <= set(recipe_names())


def test_an_unknown_recipe_is_refused_with_the_nearest():
    with raises_code("no-recipe", "'mxnett'", "'mxnet'"):
        recipe("mxnett")


@pytest.mark.parametrize(
    ("specifier", "version", "taken"),
    [
        ("", (3, 9, 0), True),
        (">=3.10,<3.13", (3, 12, 9), True),
        (">=3.10,<3.13", (3, 13, 0), False),
        (">=3.10, <3.13", (3, 9, 18), False),
        ("==3.11.*", (3, 11, 7), True),
        ("!=3.11", (3, 11, 7), False),
        (">3.8", (3, 8, 1), True),
    ],
)
def test_specifiers_compare_versions(specifier, version, taken):
    assert allows(specifier, version) is taken


@pytest.mark.parametrize(("pip", "serves"), [("", False), ("22.0.2", False), ("22.3", True), ("26.0.dev0", True)])
def test_a_pip_that_knows_other_interpreters_makes_their_environments(pip, serves):
    python = Interpreter("/usr/bin/python3", (3, 11, 2), "/usr/bin/python3.11", (), False, "linux-x86_64", pip)
    assert python.pip_serves_others is serves


def test_included_files_are_part_of_the_environment(tmp_path: Path):
    (tmp_path / "requirements.txt").write_text("-r more/base.txt\n--constraint=pins.txt\ntorch # not pinned\n")
    (tmp_path / "more").mkdir()
    (tmp_path / "more/base.txt").write_text("numpy\n")
    (tmp_path / "pins.txt").write_text("numpy<2\n")
    before = from_requirements(tmp_path / "requirements.txt")
    assert set(before.files) == {"requirements.txt", "more/base.txt", "pins.txt"}
    (tmp_path / "pins.txt").write_text("numpy<3\n")
    assert from_requirements(tmp_path / "requirements.txt").digest != before.digest


def test_requirements_on_top_of_a_recipe_are_held_to_its_versions(tmp_path: Path):
    (tmp_path / "requirements.txt").write_text("-r base.txt\n")
    (tmp_path / "base.txt").write_text("pandas\n")
    alone, both = choose(tmp_path, "jax", requirements=False), choose(tmp_path, "jax")
    assert alone and both
    assert alone == recipe("jax").environment
    assert (both.name, both.check, both.steps[:-1]) == ("jax+requirements", alone.check, alone.steps)
    assert both.steps[-1] == ("-r", "own/requirements.txt", "-c", "recipe.txt")
    assert {"own/requirements.txt", "own/base.txt", *alone.files} < set(both.files)
    assert "jax==" in both.files["recipe.txt"]
    assert "--hash" not in both.files["recipe.txt"]


def test_variables_for_the_making_are_part_of_an_environment(tmp_path: Path):
    (tmp_path / "requirements.txt").write_text("numpy\n")
    plain, flagged = choose(tmp_path), choose(tmp_path, build_env={"CFLAGS": "-O3"})
    assert plain and flagged
    assert plain.digest != flagged.digest
    assert flagged.variables == {"CFLAGS": "-O3"}
    with pytest.raises(JobError, match="no environment is made"):
        choose(tmp_path, requirements=False, build_env={"CFLAGS": "-O3"})


def test_a_link_keeps_its_name_and_its_includes_stand_beside_it(tmp_path: Path):
    code = tmp_path / "code"
    (code / "elsewhere").mkdir(parents=True)
    (code / "elsewhere/gpu.txt").write_text("-c ./pins.txt\ntorch\n")
    (code / "pins.txt").write_text("numpy<2\n")
    (code / "requirements.txt").symlink_to("elsewhere/gpu.txt")
    made = from_requirements(code / "requirements.txt")
    assert set(made.files) == {"requirements.txt", "pins.txt"}
    assert made.steps == (("-r", "requirements.txt"),)


@pytest.mark.parametrize("line", ["-e .", "--editable=./lib", "./lib", "../wheels/a.whl", "-f ./wheels", "."])
def test_a_path_in_the_code_is_refused_with_its_line(tmp_path: Path, line: str):
    (tmp_path / "requirements.txt").write_text(f"numpy\n{line}\n")
    with raises_code("requirements-file", "requirements.txt:2: ", "path in the code"):
        from_requirements(tmp_path / "requirements.txt")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("numpy\nPASSWORD=x\n", ":2: it is no requirement"),
        ("numpy \\\n  >=2\nb c\n", ":3: it is no requirement"),
        ("--requ=a.txt\n", ":1: it has an option"),
        ("a -r b.txt\n", ":1: it has an option"),
        ("-r\n", ":1: -r needs a value"),
        ("-r 'a\n", ":1: its quotes"),
        ("-r none.txt\n", ":1: can't read"),
        ("# coding: utf-7\nnumpy\n", "declares another encoding"),
        ("\n\nlib/a.whl\nb c\n", ":4: it is no requirement"),
    ],
)
def test_what_pip_would_read_otherwise_is_refused_with_its_line(tmp_path: Path, text: str, place: str):
    (tmp_path / "requirements.txt").write_text(text)
    with pytest.raises(JobError, match=place):
        from_requirements(tmp_path / "requirements.txt")


@pytest.mark.parametrize(
    "line",
    [
        "numpy>=2,<3 ; python_version > '3.9' # why",
        "torch[extra]==2.* --hash=sha256:abc --hash=sha256:def",
        "a==1 \\\n    --hash=sha256:abc",
        "git+https://h.test/a.git@v1#egg=a",
        "https://${TOKEN}@h.test/a-1-py3-none-any.whl ; sys_platform == 'linux'",
        "-ihttps://h.test/simple --no-binary :all:",
        "--find-links=/efs/wheels",
        "-r https://h.test/requirements.txt",
        "    # only a comment",
        "a \\",
    ],
)
def test_what_pip_reads_is_taken(tmp_path: Path, line: str):
    (tmp_path / "requirements.txt").write_text(f"\ufeff{line}\n", encoding="utf-8")
    assert line in from_requirements(tmp_path / "requirements.txt").files["requirements.txt"]


@pytest.mark.parametrize(
    "line", ["-e git+https://h.test/a.git#egg=a", "/efs/a.whl", "--pre", "a @ https://h.test/a.whl"]
)
def test_what_means_the_same_everywhere_is_taken(tmp_path: Path, line: str):
    (tmp_path / "requirements.txt").write_text(f"{line}\n")
    assert from_requirements(tmp_path / "requirements.txt").files["requirements.txt"] == f"{line}\n"


@pytest.mark.parametrize("content", ['{"digest": "other"}', "{", '{"name": "mpich"}'])
def test_an_environment_of_the_image_that_is_not_the_recipe_s_is_not_used(tmp_path, monkeypatch, content):
    monkeypatch.setattr(environment, "_ON_IMAGE", str(tmp_path))
    (tmp_path / "mpich").mkdir()
    (tmp_path / "mpich/.complete").write_text(content)
    assert environment._on_image(recipe("mpich").environment) is None


def test_a_job_uses_the_environment_that_the_image_has_of_its_recipe(tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "_ON_IMAGE", str(tmp_path))
    wanted, job = recipe("mpich").environment, tmp_path / "jobs/1"
    (tmp_path / "mpich").mkdir()
    (tmp_path / "mpich/.complete").write_text(json.dumps({"digest": wanted.digest}))
    job.mkdir(parents=True)
    (job / "job.json").write_text(json.dumps(JobRecord(("true",), id="1", environment=wanted).to_record()))
    umask = os.umask(0o022)
    assert environment.bring(str(job)) == 0
    os.umask(umask)
    assert json.loads((job / "environment.json").read_text()) == {"kept": "", "path": f"{tmp_path}/mpich"}
