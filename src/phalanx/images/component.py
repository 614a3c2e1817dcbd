"""A recipe as documents of EC2 Image Builder's components: what is installed, and the recipe's own test.

A component's document may have 16,000 characters (docs/aws-behaviour.md 9.1). A recipe's list of packages with their
hashes has more, so it is packed and written to the disk by several components before the one that installs it.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import shlex
import tarfile
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from phalanx.images.base import Base
from phalanx.jobs.environments import Recipe

HOME = "/usr/local/lib/phalanx"
_HERE = Path(__file__).parent
_TRIALS = _HERE / "trials"
_WORK = "/var/tmp/phalanx-image"
# Of the packed files, in one component: the rest is for the document around them.
_PART = 15_000
# Compiling everything takes longest. Image Builder's own default is two hours.
_INSTALL_TIMEOUT_S = 7200
_TEST_TIMEOUT_S = 1800
_MANIFEST = "manifest.py"
_SET = "set -euo pipefail\n"


@dataclass(frozen=True)
class Component:
    """A component: its name, and its script, which runs in the phase `build` or `test`.

    `packed` is the part of the script that contains packed files.
    """

    name: str
    phase: str
    script: str
    timeout_s: int
    packed: str = ""

    @property
    def document(self) -> str:
        """The component as Image Builder reads it: schema 1.0, in YAML, with the script line by line."""
        script = textwrap.indent(self.script, " " * 8, predicate=lambda line: line != "\n")
        return (
            f"name: {self.name}\nschemaVersion: 1.0\nphases:\n- name: {self.phase}\n  steps:\n  - name: run\n"
            f"    action: ExecuteBash\n    timeoutSeconds: {self.timeout_s}\n    onFailure: Abort\n"
            f"    inputs:\n      commands:\n      - |\n{script}"
        )


def components(recipe: Recipe, base: Base, version: str) -> list[Component]:
    """Return the components of the recipe's image on this base, in the order in which they run. Raises JobError."""
    packed = _packed(recipe)
    pieces = [packed[start : start + _PART] for start in range(0, len(packed), _PART)]
    parts = [_source(number, piece) for number, piece in enumerate(pieces, 1)]
    return [
        *parts,
        Component("install", "build", _install_script(recipe, base, version), _INSTALL_TIMEOUT_S),
        Component("test", "test", _test_script(recipe, base), _TEST_TIMEOUT_S),
    ]


def _packed(recipe: Recipe) -> str:
    """Return the environment's files as text: a compressed tar in base64, the same for the same recipe."""
    stream = io.BytesIO()
    files = {**recipe.environment.files, _MANIFEST: (_HERE / _MANIFEST).read_text()}
    with (
        gzip.GzipFile(fileobj=stream, mode="wb", mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w") as tar,
    ):
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text.encode())
            tar.addfile(entry, io.BytesIO(text.encode()))
    return base64.b64encode(stream.getvalue()).decode()


def _source(number: int, packed: str) -> Component:
    """Return the component that writes a part of the packed files to a file of its own."""
    script = f"{_SET}mkdir -p {_WORK}\ncat >{_WORK}/source.{number:02} <<'END'\n{packed}\nEND\n"
    return Component(f"source-{number}", "build", script, _TEST_TIMEOUT_S, packed)


def _install_script(recipe: Recipe, base: Base, version: str) -> str:
    environment = recipe.environment
    facts = {"recipe": recipe.name, "version": version, "base": base.alias, "digest": environment.digest}
    settings = {
        **_shared_settings(recipe),
        "home": HOME,
        "work": _WORK,
        "manager": base.manager,
        "python": f"python{base.python_for(recipe)}",
        "facts": json.dumps(facts),
    }
    arrays = {"packages": base.packages(recipe), "check": environment.check}
    steps = "".join(f"    own_pip install {shlex.join(step)}\n" for step in environment.steps)
    body = (_HERE / "install.sh").read_text()
    header = _assignments(settings, arrays) + _exports(environment.variables)
    return f"{_SET}{header}install_recipe() {{\n{steps}}}\n\n{body}"


def _test_script(recipe: Recipe, base: Base) -> str:
    trial = recipe.image["trial"]
    program = (_TRIALS / trial[-1]).read_text()
    arrays = {"programs": base.programs, "check": recipe.environment.check, "trial": trial}
    header = _assignments(_shared_settings(recipe), arrays) + _exports(recipe.environment.job_variables)
    body = (_HERE / "test.sh").read_text()
    return f"{_SET}{header}write_program() {{\n    cat <<'PROGRAM'\n{program}PROGRAM\n}}\n\n{body}"


def _shared_settings(recipe: Recipe) -> dict[str, str]:
    return {
        "environment": f"{HOME}/environments/{recipe.name}",
        "cuda": "yes" if recipe.image["cuda"] else "",
    }


def _assignments(settings: Mapping[str, str], arrays: Mapping[str, Sequence[str]]) -> str:
    plain = [f"{name}={shlex.quote(value)}\n" for name, value in settings.items()]
    lists = [f"{name}=({shlex.join(values)})\n" for name, values in arrays.items()]
    return "".join(plain + lists)


def _exports(variables: Mapping[str, str]) -> str:
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
