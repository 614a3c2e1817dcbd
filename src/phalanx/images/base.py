"""The image below a recipe's: its package manager, its Python, and the packages that nodes and the recipe need."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from phalanx.data import table
from phalanx.errors import JobError
from phalanx.jobs.environments import Recipe, runs_on
from phalanx.plan.plan import known_sizes

# Beside its own Python 3.9, Amazon Linux 2023 has these as packages (docs/aws-behaviour.md 5.12).
_AMAZON_PYTHONS = ("3.13", "3.12", "3.11")
# What a node's boot installs where it is missing (phalanx.node.packages), and what reaches package indexes. On x86-64
# install.sh adds libquadmath0.
_APT = ("ca-certificates", "curl", "libgomp1", "nfs-common", "openmpi-bin", "python3-venv")
_DNF = ("ca-certificates", "libgfortran", "libgomp", "nfs-utils")
# How the aliases of the local cloud's images end.
_FULL = "-full"
_APT_COMPILER, _DNF_COMPILER = ("g++", "python3-dev"), ("gcc-c++",)


@dataclass(frozen=True)
class Base:
    """An image of the table (data/images.json) that a recipe's image is built on."""

    alias: str
    row: dict[str, Any]

    @property
    def manager(self) -> str:
        """The program that installs the distribution's packages: apt or dnf."""
        return "dnf" if self.row["distribution"].startswith("Amazon") else "apt"

    @property
    def pythons(self) -> tuple[str, ...]:
        """The versions of Python that the image has or its distribution offers; the first is the one to prefer."""
        offered = _AMAZON_PYTHONS if self.manager == "dnf" else ()
        return tuple(dict.fromkeys((*self.row["pythons"], *offered)))

    @property
    def programs(self) -> tuple[str, ...]:
        """The programs that nodes of this image need."""
        # Amazon Linux has no package of MPI that is on PATH: recipes bring their own.
        return ("cloud-init", "mpiexec") if self.manager == "apt" else ("cloud-init",)

    def python_for(self, recipe: Recipe) -> str:
        """Return the version of Python for the recipe, such as "3.12". Raises JobError if there is none."""
        suits = runs_on(recipe.environment.python)
        for version in self.pythons:
            if suits(version):
                return version
        able = ", ".join(alias for alias, base in bases() if any(map(suits, base.pythons)))
        wanted, there = recipe.environment.python, " and ".join(self.pythons)
        raise JobError(
            f"{recipe.name} needs Python {wanted}, and {self.alias} has {there}",
            f"Name another base with --base: {able}." if able else "No known image has such a Python.",
            code="no-python",
        )

    def architecture_for(self, instance_type: str) -> str:
        """Return the processor of machines of this type. Raises JobError if the base is for others."""
        sizes = known_sizes(instance_type)
        made_for = self.row["architectures"]
        architecture = sizes["architecture"] if sizes else made_for[0]
        if architecture not in made_for:
            raise JobError(
                f"{self.alias} is for {' and '.join(made_for)}, and {instance_type} is {architecture}",
                "Name another type with --type, or another base with --base.",
                code="other-architecture",
            )
        return architecture

    def packages(self, recipe: Recipe) -> list[str]:
        """Return the packages to install: for every node, for the recipe's Python, and compilers if it needs them."""
        compiles = recipe.image["compiles"]
        if self.manager == "apt":
            own = [name for name in _APT if name != "openmpi-bin" or not self.row["mpi"]]
            return sorted((*own, *(_APT_COMPILER if compiles else ())))
        version = self.python_for(recipe)
        python = "python3" if version == self.row["pythons"][0] else f"python{version}"
        return sorted((*_DNF, f"{python}-pip", *((*_DNF_COMPILER, f"{python}-devel") if compiles else ())))


def base(alias: str) -> Base:
    """Return the base image with this alias. Raises JobError."""
    rows = table("images")["images"]
    if alias not in rows:
        raise JobError(f"there is no base image '{alias}'", f"The images are: {', '.join(rows)}.", code="no-image")
    return Base(alias, rows[alias])


def bases() -> Iterator[tuple[str, Base]]:
    """Yield all base images by their alias."""
    for alias, row in table("images")["images"].items():
        yield alias, Base(alias, row)


def local_bases(recipe: Recipe, named: str | None = None) -> list[Base]:
    """Return the local cloud's bases for the recipe's image, the one that the recipe names first. Raises JobError.

    With `named`, an alias or the name under which its image is built, only that one.
    """
    if recipe.image["cuda"]:
        raise JobError(
            f"{recipe.name} needs GPUs, which nodes of the local cloud lack",
            f"Make it on AWS: phalanx image build {recipe.name} --cloud aws",
            code="no-gpu",
        )
    there = {one.row["local"]: one for _, one in bases() if "local" in one.row}
    if named:
        chosen = there.get(named.removesuffix(_FULL))
        if chosen is None:
            raise JobError(
                f"the local cloud has no {named}",
                f"Name another base with --base: {', '.join(there)}.",
                code="no-image",
            )
        chosen.python_for(recipe)
        return [chosen]
    suits = runs_on(recipe.environment.python)
    able = [one for one in there.values() if any(map(suits, one.pythons))]
    if not able:
        wanted = recipe.environment.python
        pythons = ", ".join(f"{name} has {' and '.join(one.pythons)}" for name, one in there.items())
        raise JobError(
            f"{recipe.name} needs Python {wanted}, and no image of the local cloud has one",
            f"{pythons}.",
            code="no-python",
        )
    return sorted(able, key=lambda one: one.row["local"] != recipe.image["base"])
