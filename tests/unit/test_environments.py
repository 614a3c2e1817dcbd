"""What environments are made from: recipes as shipped, requirements as users write them, Pythons as specified."""

from __future__ import annotations

import codecs
import contextlib
import json
import os
import re
import time
from pathlib import Path

import pytest
from error_codes import raises_code

from phalanx.cli.environment import chosen_environment
from phalanx.errors import JobError
from phalanx.jobs.environments import choose, from_requirements, recipe, recipe_names
from phalanx.jobs.requirements_file import by_text_only, collect
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


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("-e .", "."),
        ("-e .[dev]", ".[dev]"),
        ("-e libs/x", "libs/x"),
        ("--editable=./lib", "./lib"),
        ("-f wheels", "wheels"),
        ("-f ./wheels", "./wheels"),
        ("./lib", "./lib"),
        ("libs/x", "libs/x"),
        ("libs/x[dev] ; python_version > '3'", "libs/x[dev]"),
        ("x-1-py3-none-any.whl", "x-1-py3-none-any.whl"),
        ("../wheels/a.whl", "../wheels/a.whl"),
        (".", "."),
        (".[dev]", ".[dev]"),
        ("x @ ./libs/x", "./libs/x"),
        ("x[dev] @ libs/x", "libs/x"),
        ("file:libs/x", "file:libs/x"),
    ],
)
def test_a_path_in_the_code_is_refused_with_its_line(tmp_path: Path, line: str, path: str):
    (tmp_path / "libs/x").mkdir(parents=True)
    (tmp_path / "x-1-py3-none-any.whl").touch()
    (tmp_path / "requirements.txt").write_text(f"numpy\n{line}\n")
    with raises_code("requirements-file", f"requirements.txt:2: '{path}' is a path in the code"):
        from_requirements(tmp_path / "requirements.txt")


@pytest.mark.parametrize(
    "wrote", ["{}", "-e {}", "x @ file://{}", "-e file://{}", "file://localhost{}", "-r file://{}"]
)
@pytest.mark.parametrize("place", ["code/libs/x", "of-mine/x-1.whl", "/home/x/croot/x_1/work", "/feedstock_root/w.whl"])
def test_a_path_of_this_machine_is_refused_with_its_line(tmp_path: Path, monkeypatch, wrote: str, place: str):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "code/libs/x").mkdir(parents=True)
    (tmp_path / "of-mine").mkdir()
    (tmp_path / "of-mine/x-1.whl").touch()
    path = str(tmp_path / place)
    (tmp_path / "code/requirements.txt").write_text(f"numpy\n{wrote.format(path)}\n")
    with raises_code("requirements-file", f"requirements.txt:2: '{path}' is a path of ") as refused:
        from_requirements(tmp_path / "code/requirements.txt")
    assert ("pip list --format=freeze" in str(refused.value)) == place.startswith("/")


def test_a_line_of_a_file_with_secrets_is_not_taken_for_a_path(tmp_path: Path):
    (tmp_path / "requirements.txt").write_text("-r .env\n")
    (tmp_path / ".env").write_text("KEY=abc/secret+1\nabc/secret.zip\nkey @ of/secret\n")
    with raises_code("requirements-file") as refused:
        from_requirements(tmp_path / "requirements.txt")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "content",
    [
        "numpy\n# é\n".encode("utf-16"),
        "# coding: latin-1\n-r more.txt\n# é\n".encode("utf-32"),
        codecs.BOM_UTF16_BE + "numpy\n# é\n".encode("utf-16-be"),
        "\ufeff-r more.txt\n# é\n".encode(),
        "# -*- coding: latin-1 -*-\nnumpy\n# é\n".encode("latin-1"),
        "# why\r\n# vim: set fileencoding=cp1252 :\r\nnumpy\r\n# é\r\n".encode("cp1252"),
        b" # coding: latin-1\n-r \\\n  more.txt\n",
        b"--requirement=\\\r\nmore.txt\r\n",
        b"numpy\\\n>=2\n",
    ],
)
def test_a_file_is_decoded_as_pip_does_and_pip_on_a_node_decodes_the_same(tmp_path: Path, content: bytes):
    (tmp_path / "requirements.txt").write_bytes(content)
    (tmp_path / "more.txt").write_text("six\n")
    texts = from_requirements(tmp_path / "requirements.txt").files
    text = texts["requirements.txt"]
    assert set(texts) == ({"requirements.txt", "more.txt"} if "more" in text else {"requirements.txt"})
    assert ("é" in text) == (b"\\" not in content)
    assert not any(re.match("#.*coding", line) for line in text.splitlines()[:2])


@pytest.mark.parametrize("content", [b"# coding: nonsense\n", b"# coding: hex\n", b"# coding: ascii\n# \xc3\xa9\n"])
def test_a_file_that_pip_can_not_decode_is_refused(tmp_path: Path, content: bytes):
    (tmp_path / "requirements.txt").write_bytes(content)
    with raises_code("requirements-file", "requirements.txt "):
        from_requirements(tmp_path / "requirements.txt")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("numpy\nPASSWORD=x\n", ":2: it is neither"),
        ("numpy \\\n  >=2\nb c\n", ":3: it is neither"),
        ("--requ=a.txt\n", ":1: phalanx does not know"),
        ("a -r b.txt\n", ":1: phalanx does not know"),
        ("-r\n", ":1: -r needs a value"),
        ("-r 'a\n", ":1: its quotes"),
        ("-r none.txt\n", ":1: can't read"),
        ("# coding: utf-7\nnumpy\n", "declares another encoding"),
        ("\n\nlib/a.whl\nb c\n", ":4: it is neither"),
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


@pytest.mark.parametrize(
    ("line", "is_named"),
    [
        ("https://x.org/a-1.0-py3-none-any.whl", True),
        ("a @ https://x.org/a.tar.gz", True),
        ("-e hg+https://x.org/a#egg=a", True),
        ("a @ svn+ssh://x.org/a", True),
        ("-f https://x.org/wheels", True),
        ("a @ https://x.org/a.whl --hash=sha256:0", False),
        ("a @ https://x.org/a.whl#sha256=0", False),
        ("git+https://x.org/a@main", False),
        ("a @ git+https://x.org/a@main", False),
        ("--index-url https://x.org/simple", False),
        ("--extra-index-url=https://x.org/simple", False),
        ("numpy>=2  # see https://numpy.org", False),
    ],
)
def test_a_url_whose_content_may_change_unnoticed_is_named(tmp_path, monkeypatch, capsys, line, is_named):
    (tmp_path / "requirements.txt").write_text(f"numpy\n{line}\n")
    assert by_text_only(collect(tmp_path / "requirements.txt")) == ["requirements.txt:2"] * is_named
    assert chosen_environment(tmp_path, None, None, False, {})
    assert ("requirements.txt:2" in capsys.readouterr().err) == is_named
    chosen_environment(tmp_path, "openmpi", None, False, {})
    assert ("requirements.txt:2:" in capsys.readouterr().err) == is_named


def test_no_recipe_has_such_a_url():
    assert [name for name in recipe_names() if by_text_only(recipe(name).environment.files)] == []


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


LONG = {
    "spaces": ("a" + " " * 3000 + "\n") * 100 + "b" + " " * 200_000 + "c",
    "spaces in options": "a" + " " * 200_000 + "--hash=sha256:0",
    "brackets": "[" * 200_000 + "]",
    "fragments": "https://host/" + "#" * 200_000,
    "options": "--pre " * 40_000,
    "specifiers": "a " + ",".join([">=1"] * 200_000),
    "a nested marker": "a; " + "(" * 4000,
    "requirements": "a\n" * 100_000,
}


@pytest.mark.parametrize("text", LONG.values(), ids=LONG)
def test_no_requirements_file_takes_long_to_check(tmp_path, text):
    (tmp_path / "requirements.txt").write_text(text)
    began_s = time.process_time()
    with contextlib.suppress(JobError):
        from_requirements(tmp_path / "requirements.txt")
    assert time.process_time() - began_s < 2
