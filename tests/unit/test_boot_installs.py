"""`up` says what a node's boot installs: on an image of a recipe nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fake_cloud import FakeAws

from phalanx.cluster.bring_up import BringUp, Note
from phalanx.plan.machine_images import Image
from phalanx.spec.spec import ClusterSpec

TORCH = Image("ami-0123456789abcdef0", "phalanx-torch", "x86_64", "/dev/sda1", 30, "torch@2026.1", "ubuntu-24.04")


@pytest.mark.parametrize(
    ("image", "installed"),
    [
        (
            Image(
                "ami-0123456789abcdef1",
                "ubuntu/images/hvm-ssd-gp3/ubuntu-noble-24.04-amd64-server-20261101",
                "x86_64",
                "",
                8,
            ),
            ["each node's boot installs python3-venv, nfs-common, openmpi-bin, libgomp1, libquadmath0 (about 30 s)"],
        ),
        (TORCH, []),
    ],
)
def test_up_says_what_a_boot_installs_and_nothing_on_an_image_of_a_recipe(in_memory, image, installed):
    cloud = FakeAws()
    known = cloud.facts
    cloud.name = "aws"
    cloud.facts = lambda *given: replace(known(*given), cloud="aws", image=image)
    on_aws = ClusterSpec(
        name="demo", nodes=2, cloud="aws", image=image.image_id, type="c5.large", ssh_from="192.0.2.0/24"
    )
    notes = [step.text for step in BringUp(cloud, on_aws).steps() if isinstance(step, Note)]
    assert [note for note in notes if "installs" in note] == installed
