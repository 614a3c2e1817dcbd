"""Which image a plan uses, what is known of it, and which combinations can't work."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from clusters import FACTS, aws_spec, plan
from error_codes import raises_code

from phalanx.data import table
from phalanx.errors import SpecError
from phalanx.plan.machine_images import Image, ImageChoice, admin_user_of
from phalanx.plan.plan import make_plan
from phalanx.plan.plan_text import describe, explain, warnings
from phalanx.template import synthesize

X86 = replace(FACTS, cloud="aws")
ARM = replace(X86, architecture="arm64")
UBUNTU = Image("ami-1", "ubuntu/images/hvm-ssd-gp3/ubuntu-noble-24.04-amd64-server-20261101", "x86_64", "/dev/sda1", 8)


def planned(facts, **fields):
    return make_plan(aws_spec(**fields), facts)


def with_gpus(facts, gpus=1):
    return replace(facts, gpus=gpus)


@pytest.mark.parametrize(
    ("facts", "fields", "printed", "hint"),
    [
        (
            X86,
            {"type": "p3dn.24xlarge"},
            "dlami-pytorch has no driver for the GPUs of p3dn.24xlarge",
            "proprietary driver",
        ),
        (
            X86,
            {"type": "p3dn.24xlarge", "image": "dlami-base"},
            "no driver for the GPUs of p3dn.24xlarge",
            "g4dn.xlarge",
        ),
        (
            X86,
            {"type": "g5.xlarge", "image": "ubuntu-24.04"},
            "ubuntu-24.04 has no driver",
            "can: dlami-pytorch, dlami",
        ),
        (ARM, {"type": "g5g.xlarge", "image": "dlami-pytorch"}, "is for x86_64, and g5g.xlarge is arm64", "dlami-base"),
    ],
)
def test_gpus_without_a_driver_are_refused_and_what_has_one_is_named(facts, fields, printed, hint):
    with pytest.raises(SpecError) as refused:
        planned(with_gpus(facts), **fields)
    assert printed in refused.value.message
    assert hint in refused.value.hint


def test_an_image_for_another_processor_is_refused():
    with raises_code("other-architecture", "/my/image", "x86_64", "c7g.large", "arm64"):
        planned(replace(ARM, image=UBUNTU), type="c7g.large", image="/my/image")


def test_the_local_cloud_takes_every_image():
    make_plan(replace(aws_spec(type="p3dn.24xlarge"), cloud="local"), with_gpus(FACTS))


@pytest.mark.parametrize(
    ("facts", "fields", "printed"),
    [
        (
            with_gpus(X86),
            {"type": "g5.xlarge", "image": "ubuntu-24.04", "boot": "make driver"},
            "boot script must install",
        ),
        (with_gpus(X86), {"type": "g9.xlarge"}, "not known whether the driver of dlami-pytorch supports g9.xlarge"),
        (X86, {"image": "/my/image"}, "what /my/image contains is not known"),
    ],
)
def test_what_may_work_is_a_warning(facts, fields, printed):
    assert any(printed in warning for warning in warnings(planned(facts, **fields)))


def test_gpus_of_arm64_get_an_image_that_exists_for_it():
    spec = aws_spec(type="g5g.xlarge")
    assert "arm64/base-oss-nvidia-driver-gpu-" in ImageChoice(spec, 1, "arm64").parameter
    make_plan(spec, with_gpus(ARM))


def test_what_ec2_says_of_an_image_counts_more_than_its_alias():
    mine = Image("ami-2", "mine", "x86_64", "/dev/sda", 30)
    made = planned(replace(X86, image=mine), image="/my/al2023/image")
    assert made.root_device == "/dev/sda"
    shown = "\n".join(explain(made))
    assert "root disk of 30 GiB at /dev/sda; ami-2 (mine)" in shown


def test_an_image_of_a_known_name_is_known_whatever_its_parameter():
    made = planned(replace(X86, image=UBUNTU), image="/my/image")
    shown = "\n".join(explain(made))
    assert "Ubuntu 24.04 with Python 3.12; without Python's venv, an NFS client, MPI, drivers for GPUs" in shown
    assert not any("is not known" in warning for warning in warnings(made))


@pytest.mark.parametrize(
    ("named", "user"),
    [
        ((UBUNTU.name, "/my/image"), "ubuntu"),
        (("Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 24.04) 20261006", ""), "ubuntu"),
        (("debian-12-amd64-20261101", "/aws/service/debian/release/12/latest/amd64"), "admin"),
        (("al2023-ami-2023.12.20260930.0-kernel-6.12-x86_64", ""), "ec2-user"),
        (("", "/aws/service/canonical/ubuntu/server/24.04/x"), "ubuntu"),
    ],
)
def test_the_administrator(named, user):
    assert admin_user_of(*named) == user


@pytest.mark.parametrize(
    ("name", "alias"),
    [
        (UBUNTU.name, "ubuntu-24.04"),
        ("ubuntu/images/hvm-ssd/ubuntu-jammy-22.04-arm64-server-20261101", "ubuntu-22.04"),
        ("al2023-ami-2023.12.20260930.0-kernel-6.12-x86_64", "amazon-linux-2023"),
        ("Deep Learning OSS Nvidia Driver AMI GPU PyTorch 2.13 (Ubuntu 24.04) 20261003", "dlami-pytorch"),
        ("Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 24.04) 20261006", "dlami-base"),
        ("Deep Learning ARM64 Base OSS Nvidia Driver GPU AMI (Ubuntu 24.04) 20260929", "dlami-base"),
        ("Deep Learning Base OSS Nvidia Driver GPU AMI (Amazon Linux 2023) 20261006", "dlami-base-amazon-linux-2023"),
        ("mine", None),
    ],
)
def test_images_are_recognised_by_their_names(name, alias):
    choice = ImageChoice(aws_spec(image="/my/image"), 0, "x86_64", replace(UBUNTU, name=name))
    assert choice.contents == (table("images")["images"][alias] if alias else None)


@pytest.mark.parametrize(
    ("image", "installed"),
    [
        ("ubuntu-24.04", "python3-venv, nfs-common, openmpi-bin, libgomp1, libquadmath0 (about 30 s)"),
        ("dlami-base", None),
        ("amazon-linux-2023", None),
    ],
)
def test_the_plan_says_what_a_boot_installs(image, installed):
    assert dict(describe(planned(X86, image=image))).get("boot installs") == installed


def test_the_plan_for_graviton_names_no_library_of_other_processors():
    choice = ImageChoice(aws_spec(image="ubuntu-24.04"), 0, "arm64", None)
    assert choice.packages == ["python3-venv", "nfs-common", "openmpi-bin", "libgomp1"]


RECIPE = Image("ami-2", "phalanx-torch", "x86_64", "/dev/sda1", 30, "torch@2026.1122.905", "ubuntu-24.04")


def test_a_boot_on_an_image_of_a_recipe_installs_nothing():
    shown = dict(describe(planned(replace(X86, image=RECIPE), image="recipe:torch")))
    assert "boot installs" not in shown
    assert shown["on the image"].startswith("the recipe torch@2026.1122.905; Ubuntu 24.04 with Python 3.12; ")
    assert shown["image"] == "ami-2"


def test_a_head_that_serves_the_shared_directory_installs_the_server_of_nfs_and_nothing_else():
    shown = dict(describe(planned(replace(X86, image=RECIPE), image="recipe:torch", storage="head")))
    assert shown["boot installs"] == "nfs-kernel-server on the head (about 30 s)"


def test_the_template_records_which_version_of_the_image_it_was_made_with():
    document = json.loads(synthesize(planned(replace(X86, image=RECIPE), image="recipe:torch")))
    assert document["Metadata"]["phalanx"]["image"] == "torch@2026.1122.905"
    assert document["Parameters"]["Image"]["Default"] == "ami-2"
    assert "image" not in json.loads(synthesize(planned(X86)))["Metadata"]["phalanx"]


def test_an_image_of_a_recipe_for_another_processor_is_refused():
    with raises_code("other-architecture", "recipe:torch", "x86_64", "c7g.large", "arm64"):
        planned(replace(ARM, image=RECIPE), type="c7g.large", image="recipe:torch")


def test_an_image_of_a_recipe_that_nobody_has_looked_up_is_refused():
    with raises_code("cloud-not-asked", "recipe:torch") as refused:
        planned(X86, image="recipe:torch")
    assert "--offline" in refused.value.hint


def test_a_local_plan_says_it_only_of_a_full_operating_system():
    assert "boot installs" in dict(describe(plan(image="debian-12-full")))
    assert not {"boot installs", "on the image"} & dict(describe(plan())).keys()


def test_the_page_of_images_shows_the_table():
    page = (Path(__file__).parents[2] / "docs" / "images.md").read_text()
    for alias, row in table("images")["images"].items():
        if "local" not in row:
            parts = ["yes" if row[part] else "no" for part in ("venv", "nfs", "mpi")]
            columns = [
                f"`{alias}`",
                row["distribution"],
                ", ".join(row["pythons"]),
                *parts,
                ", ".join(row["architectures"]),
            ]
            assert f"| {' | '.join(columns)} |" in page


@pytest.mark.parametrize(
    ("image", "works"), [("amazon-linux-2023", True), ("ami-0123456789abcdef0", True), (None, False)]
)
def test_efs_by_tls_takes_an_image_for_which_its_client_can_be_had(image, works):
    wanted = aws_spec(tls="required", image=image)
    facts = replace(FACTS, cloud="aws")
    if works:
        make_plan(wanted, facts)
        return
    with raises_code("image-lacks", "amazon-efs-utils"):
        make_plan(wanted, facts)
