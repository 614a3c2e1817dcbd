"""The scripts that make and test machine images, checked by shellcheck: every recipe, with apt and with dnf."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from phalanx.errors import JobError
from phalanx.images.base import Base, bases
from phalanx.images.component import components
from phalanx.jobs.environments import Recipe, recipe, recipe_names


def test_shellcheck_finds_nothing_in_any_script(tmp_path):
    files = []
    for one, base in suitable():
        # Without the sources, which are all alike.
        for part in components(one, base, "2026.1122.905")[-2:]:
            files.append(tmp_path / f"{one.name}-{base.manager}-{part.name}")
            files[-1].write_text(part.script)
    shellcheck = Path(sys.executable).with_name("shellcheck")
    done = subprocess.run([shellcheck, "--shell=bash", *files], capture_output=True, text=True, check=False)
    assert done.stdout == ""
    assert len(files) > 2 * len(recipe_names())


def test_a_base_without_cloud_init_is_refused_before_anything_is_installed():
    *_, install, _test = components(recipe("jax"), dict(bases())["ubuntu-24.04"], "2026.1122.905")
    done = subprocess.run(
        ["/bin/bash", "-s"],
        input=install.script,
        env={"PATH": "/nonexistent"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "phalanx: the base image has no cloud-init, by which nodes start\n"


def suitable() -> Iterator[tuple[Recipe, Base]]:
    """Yield each recipe with one base of each package manager that has a Python for it."""
    for one in map(recipe, recipe_names()):
        able = {base.manager: base for _, base in bases() if has_python(base, one)}
        yield from ((one, base) for base in able.values())


def has_python(base: Base, one: Recipe) -> bool:
    try:
        return bool(base.python_for(one))
    except JobError:
        return False
