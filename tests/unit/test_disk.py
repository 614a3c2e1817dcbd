"""An image that was made from a node boots as a new node: nothing of the old one is believed or used."""

from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.node import disk, files

BLOCKS = {
    "etc/fstab": "fs-old:/ /efs efs _netdev,tls 0 0\n",
    "etc/hosts": "10.0.0.9 deeplearning-worker1\n",
    "etc/environment": 'EFS_MOUNT="/efs"\n',
}


@pytest.fixture
def image(tmp_path) -> Path:
    """The disk of a node of another cluster, once new user data has written its first files."""
    for name in ("agent/x", "config.json", "instance", "booted", "roster.json", "authority/key", "boot-script"):
        files.write(f"{tmp_path}/opt/phalanx/{name}", name)
    for name in ("phalanx/id_ed25519", "phalanx/authorized_keys/ubuntu", "sshd_config.d/60-phalanx.conf", "moduli"):
        files.write(f"{tmp_path}/etc/ssh/{name}", name)
    for name, text in BLOCKS.items():
        files.write(f"{tmp_path}/{name}", files.with_block("of the image\n", text))
    return tmp_path


def test_only_what_user_data_wrote_is_left(image, monkeypatch):
    unmounted: list[str] = []
    monkeypatch.setattr(disk.os, "spawnlp", lambda *arguments: unmounted.append(arguments[-1]))
    disk.begin(str(image))
    assert sorted(path.name for path in (image / "opt/phalanx").iterdir()) == ["agent", "config.json"]
    assert [path.name for path in (image / "etc/ssh").iterdir() if path.is_file()] == ["moduli"]
    assert not (image / "etc/ssh/phalanx").exists() and not list((image / "etc/ssh/sshd_config.d").iterdir())
    assert {(image / name).read_text() for name in BLOCKS} == {"of the image\n"}
    assert unmounted == ["/efs"]


def test_an_ordinary_image_gets_the_unit_and_loses_nothing(tmp_path):
    files.write(f"{tmp_path}/opt/phalanx/config.json", "{}")
    files.write(f"{tmp_path}/etc/hosts", "127.0.0.1 localhost\n")
    disk.begin(str(tmp_path))
    assert (tmp_path / "etc/hosts").read_text() == "127.0.0.1 localhost\n"
    assert (tmp_path / "etc/systemd/system/phalanx.service").exists() and not (tmp_path / "etc/fstab").exists()


def test_state_is_bound_to_the_instance(tmp_path):
    assert disk.belongs_to("i-1", str(tmp_path)), "a boot that has just begun"
    disk.bind("i-1", str(tmp_path))
    assert disk.belongs_to("i-1", str(tmp_path)) and not disk.belongs_to("i-2", str(tmp_path))


def test_what_a_job_has_nested_too_deep_for_python_does_not_stop_the_boot(image, monkeypatch):
    def too_deep(_path: str) -> None:
        raise RecursionError

    removed: list[str] = []
    monkeypatch.setattr("shutil.rmtree", too_deep)
    monkeypatch.setattr(disk.os, "spawnlp", lambda *arguments: removed.append(" ".join(arguments[1:])))
    files.write(f"{image}/var/lib/phalanx/environments/x", "")
    disk.begin(str(image))
    assert f"rm rm -rf {image}/var/lib/phalanx" in removed
