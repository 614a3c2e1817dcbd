"""What a job's environment is made from: a recipe that phalanx ships, or the user's requirements.txt. Only data."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from phalanx.counts import first_of
from phalanx.errors import JobError
from phalanx.jobs import package_files
from phalanx.jobs.package_files import REQUIREMENTS
from phalanx.jobs.requirements_file import check, collect
from phalanx.runner.environments.interpreters import allows
from phalanx.runner.files.job_record import Environment

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pyright: ignore[reportMissingImports]

_MOST_NAMED = 5
_RECIPES = Path(__file__).parents[1] / "recipes"
_BEFORE = "before.txt"
_CONSTRAINTS = "constraints.txt"
# The user's own files on top of a recipe, and the recipe's versions, which constrain them.
_OWN = "own"
_PINS = "recipe.txt"
_PIN = re.compile(r"^(?P<pin>[A-Za-z0-9_.-]+==[^\\\n]*[^\\\s])", re.MULTILINE)
_HASH = "--hash=sha256:"
# One package in a lock file: its first line, and the hashes below it.
_ENTRY = re.compile(r"^(?P<name>[a-z0-9-]+)==.*\n(?:    .*\n)*", re.MULTILINE)


@dataclass(frozen=True)
class Recipe:
    """A shipped recipe: what it installs, for which launcher, and notes for the user.

    `image` is how a machine image is made of it: its usual `base`, whether it `compiles` packages, whether it needs an
    MPI with `cuda`, and `trial`, the command that tries it with two processes (the last word is in images/trials).
    """

    name: str
    summary: str
    launcher: str
    notes: str
    environment: Environment
    image: Mapping[str, Any]


def recipe_names() -> list[str]:
    return sorted(path.stem for path in _RECIPES.glob("*.toml"))


def recipe(name: str) -> Recipe:
    """Return the recipe of this name. Raises JobError when there is none."""
    names = recipe_names()
    if name not in names:
        near = difflib.get_close_matches(name, names, 1)
        meant = f"; did you mean '{near[0]}'?" if near else ""
        raise JobError(f"there is no recipe '{name}'{meant}", f"The recipes are: {', '.join(names)}.", code="no-recipe")
    return _recipe(name, _read_toml(_RECIPES / f"{name}.toml"))


def recipe_pythons() -> dict[str, str]:
    """Return the versions of Python that each recipe allows, such as ">=3.10,<3.12"."""
    return {name: _read_toml(_RECIPES / f"{name}.toml")["python"] for name in recipe_names()}


def runs_on(specifier: str) -> Callable[[str], bool]:
    """Return a function that says whether the specifier allows a version of Python, such as "3.12"."""
    return lambda python: allows(specifier, tuple(map(int, python.split("."))))


def from_requirements(path: Path, say: Callable[[str], object] = lambda _: None) -> Environment:
    """Return the environment that a requirements file and what it includes, a lock or a script describe.

    `say` gets a sentence about what of a lock is not installed. Raises JobError.
    """
    if not package_files.is_lock(path):
        return Environment("requirements", collect(path), (("-r", path.name),))
    from phalanx.jobs import lock_files  # here, because few jobs have one, and it loads packaging

    listed = lock_files.read(path)
    if listed.left_out:
        named = first_of(listed.left_out, most=_MOST_NAMED)
        say(f"{named}: packages of your own are sent as code, not installed; `--env PYTHONPATH=DIRECTORY` finds them")
    files: dict[str, str] = {}
    steps = []
    # What has no hash can't be beside what has one.
    for name, lines in (("listed.txt", listed.lines), ("unhashed.txt", listed.unhashed)):
        if lines:
            files.update(check(name, "".join(f"{line}\n" for line in lines), path.absolute().parent))
            steps.append((*(("--no-deps",) if listed.is_whole else ()), "-r", name))
    return Environment("requirements", files, tuple(steps), python=listed.python)


def choose(
    directory: Path,
    named: str | None = None,
    requirements: str | Path | bool | None = None,
    build_env: Mapping[str, str] | None = None,
    command: Sequence[str] = (),
    say: Callable[[str], object] = lambda _: None,
) -> Environment | None:
    """Return the environment of a requirements file, on top of the recipe that is `named`, if any.

    `requirements` is by default what package_files finds; False means none. `build_env` sets variables for the tools
    that install and build the packages. `say` gets sentences for the user. Raises JobError.
    """
    path = package_files.find(directory, command) if requirements in (None, True) else requirements
    listed = from_requirements(Path(path), say) if path else None
    if named is None:
        chosen = listed
    else:
        chosen = recipe(named).environment
        chosen = _on_top(chosen, listed) if listed else chosen
    if not build_env:
        return chosen
    if chosen is None:
        raise JobError(
            "--build-env has no effect: no environment is made",
            "Name a recipe or a requirements file.",
            code="conflicting-options",
        )
    return replace(chosen, variables={**chosen.variables, **build_env})


def _on_top(base: Environment, listed: Environment) -> Environment:
    """Return the recipe's packages, then those of a requirements file, constrained to the recipe's versions."""
    files = {f"{_OWN}/{name}": text for name, text in listed.files.items()}
    pins = "".join(f"{entry['pin']}\n" for text in base.files.values() for entry in _PIN.finditer(text))
    steps = ((*options, f"{_OWN}/{name}", "-c", _PINS) for *options, name in listed.steps)
    return replace(
        base,
        name=f"{base.name}+{listed.name}",
        files={**base.files, **files, _PINS: pins},
        steps=(*base.steps, *steps),
    )


def _read_toml(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return tomllib.load(file)


def _recipe(name: str, data: Mapping[str, Any]) -> Recipe:
    pip = data.get("pip", {})
    lock = (_RECIPES / f"{name}.lock").read_text()
    files, flags = _of_hashes(data, lock) if _HASH in lock else _of_pins(data, lock)
    environment = Environment(
        name=name,
        files=files,
        steps=tuple((*flags, *pip.get("flags", ()), "-r", file) for file in (_BEFORE, REQUIREMENTS) if file in files),
        python=data["python"],
        isolated=True,
        check=tuple(data["check"]["command"]),
        variables=pip.get("env", {}),
        job_variables=data.get("env", {}),
    )
    image = {"compiles": False, "cuda": False, **data["image"]}
    return Recipe(name, data["summary"], data.get("launcher", ""), data.get("notes", "").strip(), environment, image)


def _of_hashes(data: Mapping[str, Any], lock: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the lock's lines, in one or two files, and pip's flags, which refuse packages without a listed hash.

    Build tools need a hash, too: only wheels are taken, or builds use the packages of `before`
    (--no-build-isolation).
    """
    built_with = data.get("before", ())
    first = {requirement.partition("==")[0] for requirement in built_with}
    files: dict[str, str] = {}
    for entry in _ENTRY.finditer(lock):
        file = _BEFORE if entry["name"] in first else REQUIREMENTS
        files[file] = files.get(file, "") + entry[0]
    return files, ("--require-hashes", "--no-deps", *(() if built_with else ("--only-binary", ":all:")))


def _of_pins(data: Mapping[str, Any], lock: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the recipe's requirements, with the lock's versions of their dependencies as constraints.

    The files' hashes differ from index to index, so none are required.
    """
    groups = {_BEFORE: data.get("before", ()), REQUIREMENTS: data["requirements"]}
    files = {file: "".join(f"{one}\n" for one in group) for file, group in groups.items() if group}
    return {**files, _CONSTRAINTS: lock}, ()
