"""What a script's block, a pylock.toml and a uv.lock name, as lines for pip."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from error_codes import raises_code

from phalanx.jobs import lock_files, package_files
from phalanx.jobs.environments import choose, from_requirements

A, B, COMMIT = "a" * 64, "b" * 64, "0123456789" * 4
SCRIPT = """#!/usr/bin/env python
# /// script
# requires-python = "~=3.11"
# dependencies = [
#   "numpy>=2",  # fast
#   "rich[jupyter] ; sys_platform == 'linux'",
# ]
# ///
import numpy
"""
PYPI = 'source = { registry = "https://pypi.org/simple" }'
UV = f"""version = 1
requires-python = ">=3.10,<3.14"
resolution-markers = ["python_full_version >= '3.12'", "python_full_version < '3.12'"]

[[package]]
name = "mine"
source = {{ editable = "." }}
dependencies = [
    {{ name = "numpy", version = "1.26.4", {PYPI}, marker = "python_full_version < '3.12'" }},
    {{ name = "numpy", version = "2.5.0", {PYPI}, marker = "python_full_version >= '3.12'" }},
    {{ name = "torch" }}, {{ name = "libs" }}, {{ name = "fork" }},
    {{ name = "pywin", marker = "sys_platform == 'win32'" }},
    {{ name = "cli", extra = ["color"] }}, {{ name = "arm", marker = "platform_machine == 'aarch64'" }},
]

[package.dev-dependencies]
dev = [{{ name = "pytest" }}]

[[package]]
name = "numpy"
version = "1.26.4"
{PYPI}
resolution-markers = ["python_full_version < '3.12'"]
wheels = [{{ url = "https://x/numpy.whl", hash = "sha256:{A}", size = 1 }}]

[[package]]
name = "numpy"
version = "2.5.0"
{PYPI}
sdist = {{ url = "https://x/numpy.tar.gz", hash = "sha256:{B}" }}
wheels = [{{ url = "https://x/numpy.whl", hash = "sha256:{A}" }}]

[[package]]
name = "torch"
version = "2.13.0+cpu"
source = {{ registry = "https://download.pytorch.org/whl/cpu" }}
wheels = [{{ url = "https://x/torch.whl", hash = "sha256:{A}" }}]

[[package]]
name = "libs"
source = {{ directory = "libs" }}
dependencies = [{{ name = "deep" }}]

[[package]]
name = "fork"
version = "1"
source = {{ git = "https://github.com/x/fork?subdirectory=py&rev=main#{COMMIT}" }}
{
    "".join(
        f'''
[[package]]
name = "{name}"
version = "1"
{PYPI}
{more}
wheels = [{{{{ url = "https://x/{name}.whl", hash = "sha256:{A}" }}}}]
'''
        for name, more in [
            ("deep", ""),
            ("pywin", 'dependencies = [{ name = "onlywin" }]'),
            ("onlywin", ""),
            ("tint", ""),
            ("arm", ""),
            ("pytest", ""),
            ("cli", ""),
        ]
    )
}
[package.optional-dependencies]
color = [{{ name = "tint" }}]
""".replace("{{", "{").replace("}}", "}")
PYLOCK = f"""lock-version = "1.0"
[[packages]]
name = "numpy"
version = "2.5.0"
marker = "python_version >= '3.10'"
wheels = [{{ url = "https://x/numpy.whl", hashes = {{ sha256 = "{A}" }} }}]
[[packages]]
name = "fork"
vcs = {{ type = "git", url = "https://github.com/x/fork", commit-id = "{COMMIT}" }}
[[packages]]
name = "data"
archive = {{ url = "https://x/data.zip", hashes = {{ sha256 = "{B}" }} }}
"""
NUMPY = f'[[packages]]\nname = "n"\nversion = "1"\nwheels = [{{url = "x", hashes = {{sha256 = "{A}"}}}}]\n'


def written(directory: Path, name: str, text: str) -> Path:
    (directory / name).write_text(text)
    return directory / name


def test_a_script_names_its_packages_and_its_pythons(tmp_path):
    made = from_requirements(written(tmp_path, "train.py", SCRIPT))
    assert made.files["listed.txt"].splitlines() == ["numpy>=2", "rich[jupyter] ; sys_platform == 'linux'"]
    assert (made.steps, made.python) == ((("-r", "listed.txt"),), "==3.*,>=3.11")


def test_a_block_is_found_as_the_expression_of_its_standard_finds_it():
    begin, end = "# /// script", "# ///"
    inner = "# a = 1\r\n#\r\n#  b = 2"
    assert package_files.blocks(f"x\r\n{begin}\r\n{inner}\r\n{end}\r\ny".encode()) == ["a = 1\n\n b = 2"]
    assert package_files.blocks("\n".join((begin, "# x", end, "# y", end, "", begin, "#", end)).encode()) == [
        "x\n///\ny",
        "",
    ]
    for lines in ((begin, end), (begin, "# x"), (begin, "# x", "", end), ("# /// other", begin, "# x", end)):
        assert package_files.blocks("\n".join(lines).encode()) == []


def test_of_a_uv_lock_comes_what_the_project_needs_on_nodes(tmp_path):
    found = lock_files.read(written(tmp_path, "uv.lock", UV))
    old, new = "(python_version == '3.10' or python_version == '3.11')", "(python_version == '3.12' or"
    assert [line.partition(" --hash")[0] for line in found.lines] == [
        "--extra-index-url https://download.pytorch.org/whl/cpu",
        f"arm==1 ; ({' or '.join(f'python_version == {v!r}' for v in ('3.10', '3.11', '3.12', '3.13'))})"
        " and platform_machine == 'aarch64'",
        *("cli==1", "deep==1", f"numpy==1.26.4 ; {old}", f"numpy==2.5.0 ; {new} python_version == '3.13')"),
        *("tint==1", "torch==2.13.0+cpu"),
    ]
    assert f" --hash=sha256:{A} --hash=sha256:{B}" in found.lines[5]
    assert found.unhashed == [f"fork @ git+https://github.com/x/fork@{COMMIT}#subdirectory=py"]
    assert (found.python, found.left_out) == ("<3.14,>=3.10", ["libs"])


def test_of_a_pylock_comes_all_and_what_has_no_hash_apart(tmp_path):
    made = from_requirements(written(tmp_path, "pylock.toml", PYLOCK))
    hashed, unhashed = (made.files[name].splitlines() for name in ("listed.txt", "unhashed.txt"))
    assert hashed == [
        f"data @ https://x/data.zip --hash=sha256:{B}",
        f'numpy==2.5.0 ; python_version >= "3.10" --hash=sha256:{A}',
    ]
    assert unhashed == [f"fork @ git+https://github.com/x/fork@{COMMIT}"]
    assert made.steps == (("--no-deps", "-r", "listed.txt"), ("--no-deps", "-r", "unhashed.txt"))


def test_a_recipe_holds_each_step_of_a_lock_to_its_versions(tmp_path):
    written(tmp_path, "pylock.toml", PYLOCK)
    made = choose(tmp_path, "jax")
    assert made and [step[:3] for step in made.steps[-2:]] == [
        ("--no-deps", "-r", "own/listed.txt"),
        ("--no-deps", "-r", "own/unhashed.txt"),
    ]


def test_the_first_that_is_there_counts(tmp_path):
    found = []
    for name in ("requirements.txt", "uv.lock", "pylock.toml", "train.py"):
        written(tmp_path, name, SCRIPT if name == "train.py" else "")
        found.append(package_files.find(tmp_path, ("python", "-u", "train.py", "--lr", "1")))
    assert [path and path.name for path in found] == ["requirements.txt", "uv.lock", "pylock.toml", "train.py"]
    for command in (("train.py",), ("env", "A=1", "nice", "-n", "5", "python", "train.py")):
        assert package_files.find(tmp_path, command) == tmp_path / "train.py"
    for command in (("python", "-m", "train"), ("sh", "train.py"), ("python", "missing.py"), ()):
        assert package_files.find(tmp_path, command) == tmp_path / "pylock.toml"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.py", "import numpy\n"),
        ("t.py", SCRIPT + SCRIPT),
        ("t.py", SCRIPT.replace("numpy>=2", "./numpy")),
        ("t.py", SCRIPT.replace("numpy>=2", "--index-url=https://evil/")),
        ("t.py", SCRIPT.replace("~=3.11", "three")),
        ("t.py", SCRIPT.replace("~=3.11", "<4,>=3.11rc1")),
        ("t.py", SCRIPT.replace("~=3.11", "===3.11")),
        ("t.py", SCRIPT.replace('"numpy>=2"', "1")),
        ("uv.lock", "version = 2\n"),
        ("uv.lock", "not toml"),
        ("uv.lock", "version = 1\n"),
        ("uv.lock", UV.replace("torch.whl", "x").replace(f'"sha256:{A}"', '""')),
        ("uv.lock", UV.replace('"2.5.0"', '"2.5.0 --index-url https://evil"')),
        ("uv.lock", UV.replace("download.pytorch.org/whl/cpu", "x\\n--pre")),
        ("uv.lock", UV.replace(COMMIT, "main")),
        ("uv.lock", UV.replace("sys_platform ==", "sys_platform")),
        ("uv.lock", UV.replace('directory = "libs"', 'path = "libs.whl"')),
        ("uv.lock", UV.replace("sys_platform == 'win32'", "'x' in extras")),
        ("uv.lock", UV.replace('["color"]', "5")),
        ("uv.lock", UV.replace('["color"]', '"color"')),
        ("uv.lock", UV.replace('version = "2.5.0"\n', 'version = "2.5.0"\nresolution-markers = 5\n')),
        ("uv.lock", "version = 1\npackage = " + "[" * 5000),
        ("pylock.toml", 'lock-version = "2.0"\npackages = []\n'),
        ("pylock.toml", 'lock-version = "1.0"\n' + NUMPY.replace('"n"', '"n\\n-r x"')),
        ("pylock.toml", 'lock-version = "1.0"\n[[packages]]\nname = "n"\ndirectory = { path = "." }\n'),
        ("pylock.toml", 'lock-version = "1.0"\n' + NUMPY.replace("sha256", "md5")),
        ("pylock.toml", 'lock-version = "1.0"\n' + NUMPY + "marker = \"'dev' in dependency_groups\"\n"),
        ("pylock.toml", 'lock-version = "1.0"\n' + NUMPY + f'marker = "{"(" * 1500}"\n'),
    ],
)
def test_what_is_no_lock_is_refused(tmp_path, name, text):
    with raises_code("requirements-file"):
        from_requirements(written(tmp_path, name, text))


@pytest.mark.parametrize("many", ["markers", "dependencies", "extras", "packages"])
def test_no_lock_takes_long_to_read(tmp_path, many):
    deps = {
        "markers": [f'{{ name = "a", marker = "python_version != \'3.{n}\'" }}' for n in range(4_000)],
        "dependencies": ['{ name = "a" }'] * 4_000,
        "extras": ['{ name = "a", extra = [' + '"",' * 10_000 + "] }"],
        "packages": [f'{{ name = "a{n}" }}' for n in range(6_000)],
    }[many]
    names = [f"a{n}" for n in range(6_000)] if many == "packages" else ["a"] * 100
    packages = "".join(
        f'[[package]]\nname = "{n}"\nversion = "1"\n{PYPI}\nwheels = [{{hash = "sha256:{A}"}}]\n' for n in names
    )
    root = f'version = 1\n[[package]]\nname = "m"\nsource = {{ virtual = "." }}\ndependencies = [{",".join(deps)}]\n'
    begun = time.process_time()
    with raises_code("requirements-file"):
        from_requirements(written(tmp_path, "uv.lock", root + packages))
    assert time.process_time() - begun < 10


@pytest.mark.parametrize("word", ["a", "'a'", '"\\""'])
def test_a_key_of_many_words_is_refused_at_once(tmp_path, word):
    begun = time.process_time()
    key = " . ".join([word] * 100_000)
    for text in (f"{key} = 1", f"[{key}]", f"a = {{ {key} = 1 }}"):
        with raises_code("requirements-file"):
            from_requirements(written(tmp_path, "uv.lock", text))
    assert time.process_time() - begun < 5


def test_no_script_takes_long_to_read():
    begun = time.process_time()
    assert package_files.blocks(b"# /// script\n" * 80_000) == []
    assert time.process_time() - begun < 5
