"""The wheels that `make dist` builds hold every file of the packages: recipes, tables and the function's source too."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def checkout(project: Path, directory: Path) -> list[str]:
    """Copy what git tracks, so that no earlier build answers for this one. Returns the files of the package."""
    wanted = ["git", "ls-files", "-z", "src", "pyproject.toml", "README.md", "LICENSE"]
    names = subprocess.run(wanted, cwd=project, capture_output=True, text=True, check=True).stdout.split("\0")[:-1]
    for name in names:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(project / name, directory / name)
    return [name.removeprefix("src/") for name in names if name.startswith("src/")]


@pytest.mark.parametrize("project", [".", "localcloud"])
def test_a_wheel_holds_every_file_of_its_package(project: str, tmp_path: Path) -> None:
    files = checkout(ROOT / project, tmp_path / "project")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "--wheel-dir", tmp_path, tmp_path / "project"], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    held = [name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name]
    assert sorted(held) == sorted(files)


def test_the_local_cloud_can_be_used_and_tested_where_phalanx_is_not(tmp_path: Path) -> None:
    """`make dist` does this in an environment of its own."""
    code = "import sys; sys.modules['phalanx'] = None; import pytest; sys.exit(pytest.main(sys.argv[1:]))"
    tests = ["tests/unit", "tests/parts/test_commands.py", "tests/parts/test_tables.py"]
    argv = [sys.executable, "-c", code, "-q", "-p", "no:cacheprovider", "-p", "no:randomly", *tests]
    done = subprocess.run(argv, cwd=ROOT / "localcloud", capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
