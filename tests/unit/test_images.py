"""Images with a full operating system: their packages, what they need, and the clusters that may use them."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from clusters import GPU_FACTS, aws_spec, plan
from error_codes import raises_code
from prompts import Prompt

from localcloud.api import moto_setup, parameters
from localcloud.daemon import probe
from localcloud.images import build, command, distributions, store
from localcloud.images.distributions import DISTRIBUTIONS
from localcloud.images.store import Image
from localcloud.nodes import image_layer, operating_system
from localcloud.nodes.machine import Machine, NodeError, Site
from phalanx.data import table
from phalanx.local import endpoint
from phalanx.local import images as client
from phalanx.plan.machine_images import admin_user_of
from phalanx.plan.plan import make_plan

MACHINE = Machine(
    "i-1", "vpc-1", "10.0.0.0/16", "10.0.1.4", "ip", "t3.medium", 2, 4096, b"", "us-east-1", "a", (), image="debian-12"
)


@pytest.mark.parametrize(
    ("name", "text", "offers"),
    [
        ("debian.sources", "Types: deb\nURIs: http://a\nSuites: bookworm bookworm-updates\nComponents: main\n", True),
        ("debian.sources", "Types: deb\nURIs: http://a\nSuites: bookworm-security\nComponents: main contrib\n", True),
        ("debian.sources", "Enabled: no\nTypes: deb\nURIs: http://a\nSuites: bookworm\nComponents: main\n", False),
        ("ubuntu.sources", "Types: deb\nURIs: http://a\nSuites: noble noble-updates\nComponents: main\n", False),
        ("debian.list", "deb [signed-by=/k.gpg] http://a/debian bookworm main contrib\n", True),
        ("docker.list", "deb http://a/debian bookworm stable\n", False),
        ("pgdg.list", "deb http://a/pub/repos/apt bookworm-pgdg main\n", False),
        ("commented.list", "# deb http://a/debian bookworm main\n", False),
        ("debian.list.save", "deb http://a/debian bookworm main\n", False),
    ],
)
def test_packages_come_from_this_machines_sources_of_the_same_release(tmp_path, name, text, offers):
    (tmp_path / "sources.list.d").mkdir()
    source = tmp_path / "sources.list.d" / name
    source.write_text(text)
    assert distributions.sources(DISTRIBUTIONS["debian-12"], tmp_path) == ([str(source)] if offers else [])


def test_a_machine_of_another_release_uses_the_distributions_mirrors_and_needs_their_keys(monkeypatch):
    monkeypatch.setattr(distributions, "sources", lambda _distribution: [])
    monkeypatch.setattr(distributions, "_transport", list)
    assert distributions.command("debian-12", "unshare")[-3:] == ["bookworm", "-", "-"]
    debian, ubuntu = DISTRIBUTIONS["debian-12"], DISTRIBUTIONS["ubuntu-24.04"]
    text = distributions.mirrors(debian)
    assert "Suites: bookworm bookworm-updates\n" in text and "Suites: bookworm-security\n" in text
    assert f"Signed-By: {debian.keys}\n" in text
    assert distributions.needs_keyring(replace(debian, keys=Path("/none")))
    assert not distributions.needs_keyring(ubuntu), "its key comes with phalanx"
    text = distributions.mirrors(ubuntu)
    assert "Suites: noble noble-updates noble-security\nComponents: main universe\nSigned-By:\n -----BEGIN" in text
    assert "\n .\n" in text and "\n\n" not in text, "an empty line would end the stanza"


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_an_image_has_the_administrator_that_phalanx_logs_in_as(name, monkeypatch):
    monkeypatch.setattr(distributions, "_transport", list)
    user = admin_user_of(table("images")["images"][f"{name}-full"]["parameter"])
    assert any(f"name: {user}\n" in word for word in distributions.command(name, "root"))


def test_a_build_says_what_is_missing_and_the_line_that_installs_it(monkeypatch, tmp_path, capsys):
    ids = probe.Missing("ann has no subordinate ids.", "sudo usermod --add-subuids 100000-165535 ann")
    monkeypatch.setattr(probe, "try_mode", lambda _mode: ids)
    argv = ["--images", str(tmp_path), "build", "debian-12"]
    assert command.main(argv) == 1
    assert json.loads(capsys.readouterr().out)["message"] == f"{ids.what}\n{ids.fix}"
    monkeypatch.setattr(probe, "try_mode", lambda _mode: None)
    monkeypatch.setattr(build.shutil, "which", lambda _program: None)
    assert command.main(argv) == 1
    assert "sudo apt-get install -y --no-install-recommends mmdebstrap" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_a_build_without_room_is_refused_before_it_begins(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(build, "_require_tools", lambda _name: None)
    monkeypatch.setattr(build.shutil, "disk_usage", lambda _place: SimpleNamespace(free=300 << 20))
    assert command.main(["--images", str(tmp_path), "build", "debian-12"]) == 1
    message = json.loads(capsys.readouterr().out)["message"]
    assert message.startswith(f"the disk of {tmp_path} has 300 MiB free\nan image takes 400 MiB")
    assert not list(tmp_path.iterdir())


def test_an_image_counts_once_it_is_complete(tmp_path):
    partial = tmp_path / f"debian-12{store.PARTIAL}"
    partial.mkdir()
    image = Image("debian-12", str(tmp_path / "debian-12"), "2026-11-22", 1 << 20, 200, 0)
    (partial / "image.json").write_text("{}")
    assert store.images(tmp_path) == []
    store.complete(partial, image)
    assert store.images(tmp_path) == [image] and not partial.exists()
    store.remove(tmp_path / "debian-12")
    assert store.find(tmp_path, "debian-12") is None


@pytest.fixture
def phalanx(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    (tmp_path / "phalanx.yaml").write_text("name: full\ncloud: local\nnodes: 2\nmin: 2\nimage: debian-12-full\n")
    return Prompt(tmp_path, monkeypatch, capsys)


def test_plan_names_the_command_that_builds_the_image(phalanx, monkeypatch):
    monkeypatch.setattr(client, "is_built", lambda _name: False)
    assert phalanx("plan") == 2
    phalanx.refused("no-image", "image: debian-12-full", "`phalanx local image build debian-12`")


def test_plan_names_the_command_that_delegates_a_control_group(phalanx, monkeypatch):
    monkeypatch.setattr(client, "is_built", lambda _name: True)
    running = endpoint.Endpoint(
        "http://a", 1, 1, "c", "range", "k", "s", ("d",), (), no_cgroup="no cgroup is delegated. …\nsudo x"
    )
    monkeypatch.setattr(endpoint, "find_process", lambda: running)
    monkeypatch.setattr(endpoint, "stop", lambda: False)
    assert phalanx("plan") == 5
    phalanx.refused("no-cgroup", "image: debian-12-full", "no cgroup is delegated. …\nsudo x")


def test_other_clouds_refuse_an_image_of_this_machine():
    with raises_code("image-unsuited", "debian-12-full", "aws"):
        make_plan(aws_spec(image="debian-12-full"), GPU_FACTS)
    assert parameters.image_id(plan(image="debian-12-full").image_parameter)
    assert parameters.image_id("/localcloud/images/debian-1") is None


@pytest.mark.parametrize(
    ("mode", "cgroup", "built", "reason"),
    [
        ("range", Path("/group"), False, "is not built .localcloud image build debian-12"),
        ("single", Path("/group"), True, "needs separate accounts, and this local cloud is in mode single"),
        ("range", None, True, "runs systemd, and no cgroup is delegated"),
    ],
)
def test_a_node_that_cant_run_its_image_says_why(tmp_path, mode, cgroup, built, reason):
    if built:
        (tmp_path / "debian-12/tree").mkdir(parents=True)
    with pytest.raises(NodeError, match=reason):
        operating_system.require(Site(tmp_path, mode, (), (), cgroup=cgroup, images=tmp_path), MACHINE)


def test_the_layer_has_what_belongs_to_this_local_cloud(tmp_path):
    site = Site(tmp_path, "range", (), (), etc={"pip.conf": "[global]\n"})
    image_layer.build(site)
    assert image_layer.holds(Path("/etc/passwd")) and not image_layer.holds(Path("/opt"))
    assert os.access(site.layer / "usr/sbin/mount.efs", os.X_OK)
    assert (site.layer / "usr/sbin/dhclient").stat().st_mode & 0o777 == 0o644
    assert (site.layer / "etc/pip.conf").read_text() == "[global]\n"
    assert (site.layer / "etc/systemd/system/sys-kernel-debug.mount").readlink() == Path("/dev/null")


def test_the_local_cloud_has_the_parameter_of_each_image():
    for name, image in table("images")["images"].items():
        if image["parameter"].startswith("/localcloud/"):
            assert parameters.image_id(image["parameter"]) == moto_setup.FULL_IMAGES[name.removesuffix("-full")]
            continue
        intel = image["parameter"].format(cpu="x86_64", arch="amd64")
        images = expected_images(image["parameter"])
        assert parameters.image_id(intel) == images["x86_64"], intel
        graviton = image["parameter"].format(cpu="arm64", arch="arm64")
        assert parameters.image_id(graviton) == images["arm64"], graviton
    # Without "base-" or a framework the parameter does not exist in AWS, either.
    nameless = "/aws/service/deeplearning/ami/x86_64/oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id"
    assert parameters.image_id(nameless) is None


def expected_images(parameter: str) -> dict[str, str]:
    """Return the images of a parameter: EMR takes only those with Amazon Linux."""
    if "ami-amazon-linux-latest" in parameter:
        return moto_setup.AMAZON_LINUX
    return moto_setup.AMAZON_LINUX_FOR_TRAINING if "amazon-linux-2023" in parameter else moto_setup.IMAGES
