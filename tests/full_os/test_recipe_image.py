"""A cluster on an image of a recipe: its boot installs nothing, and jobs use the environment that the image has."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from full_systems import IMAGE, UP_S, as_root
from local_clouds import api
from terminals import Terminal, a_terminal

pytestmark = pytest.mark.full_os

RECIPE = "mpich"
BUILD_S = 1800.0
SPEC = f"name: onrecipe\ncloud: local\ntype: c5.large\nnodes: 2\nmin: 2\nkeep: no\nimage: recipe:{RECIPE}\n"
SUM = "from mpi4py import MPI; import sys; print(sys.prefix, MPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.rank + 1))"


class Up:
    """The cluster, what its `up` has printed, and the name of its image."""

    def __init__(self, terminal: Terminal, printed: str, image: str) -> None:
        self.terminal, self.printed, self.image = terminal, printed, image


def names(terminal: Terminal) -> set[str]:
    return {one["name"] for one in json.loads(terminal.phalanx("local", "image", "ls", "--json").stdout)}


@pytest.fixture(scope="module")
def up() -> Iterator[Up]:
    with a_terminal(SPEC) as terminal:
        before = names(terminal)
        build = ("local", "image", "build", RECIPE, "--base", IMAGE, "--json")
        made = json.loads(terminal.phalanx(*build, timeout_s=BUILD_S).stdout)
        done = terminal.phalanx("up", timeout_s=UP_S)
        yield Up(terminal, done.stdout + done.stderr, made["name"])
        terminal.phalanx("down", "--yes")
        if made["name"] not in before:
            terminal.phalanx("local", "image", "rm", made["name"])
            assert made["name"] not in names(terminal)


@pytest.mark.parametrize("node", ["head", "worker2"])
def test_the_boot_has_installed_nothing(up, node):
    assert "boot installs" not in up.printed
    assert as_root(up.terminal, node, "grep -E ' (install|upgrade) ' /var/log/dpkg.log || true") == ""
    assert as_root(up.terminal, node, "grep installing /var/log/cloud-init-output.log || true") == ""
    assert up.terminal.on(node, "command -v mpiexec").strip() == "/usr/bin/mpiexec"


def test_the_stack_records_the_version_of_the_image(up):
    found = api(up.terminal, "cloudformation").get_template(StackName="onrecipe")["TemplateBody"]
    document = json.loads(found) if isinstance(found, str) else found
    assert document["Metadata"]["phalanx"]["image"] == up.image


def test_a_job_uses_the_environment_of_the_image(up):
    done = up.terminal.phalanx("run", "--recipe", RECIPE, "-n", "2", "--", "python", "-c", SUM)
    assert "[environment]" not in done.stdout + done.stderr
    assert done.stdout.count(f"/usr/local/lib/phalanx/environments/{RECIPE} 3") == 2, done.stdout


def test_an_image_in_use_is_kept(up):
    done = up.terminal.phalanx("local", "image", "rm", up.image, check=False)
    assert done.returncode and f"{up.image} is in use" in done.stderr
