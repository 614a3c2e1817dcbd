"""The instance's own disks: which they are, and the commands that make them one directory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from phalanx.node import files, local_disks

OWN, EBS = "Amazon EC2 NVMe Instance Storage  \n", "Amazon Elastic Block Store\n"


@pytest.fixture
def commands(monkeypatch) -> list[str]:
    """The commands that ran. `lsblk` finds nothing but on nvme9n1, which has a file system."""
    ran: list[str] = []

    def run(argv: list[str], _timeout_s: float) -> str:
        if argv[0] != "lsblk":
            ran.append(" ".join(argv))
        return "xfs\n" if argv[-1].endswith("nvme9n1") else "\n"

    monkeypatch.setattr(local_disks, "run", run)
    return ran


def mounted(root: Path, with_devices: bool = True, **models: str) -> str:
    """Mount the disks of a machine; return what became its fstab."""
    for name, model in models.items():
        (root / "sys/block" / name / "device").mkdir(parents=True)
        (root / "sys/block" / name / "device/model").write_text(model)
        if with_devices:
            (root / "dev").mkdir(exist_ok=True)
            (root / "dev" / name).touch()
    local_disks.mount(os.getuid(), lambda _: None, str(root))
    return files.read(f"{root}/etc/fstab")


def test_one_disk_gets_a_file_system(tmp_path, commands):
    table = mounted(tmp_path, nvme0n1=EBS, nvme1n1=OWN)
    assert commands == [
        f"mkfs.ext4 -q -E nodiscard -L phalanx-scratch {tmp_path}/dev/nvme1n1",
        "mount /scratch",
    ]
    assert "LABEL=phalanx-scratch /scratch ext4 noatime,nosuid,nodev,nofail 0 0\n" in table


def test_several_disks_are_striped(tmp_path, commands):
    mounted(tmp_path, nvme0n1=EBS, nvme1n1=OWN, nvme2n1=OWN)
    disks = f"{tmp_path}/dev/nvme1n1 {tmp_path}/dev/nvme2n1"
    assert commands[0].endswith(f"mdadm --create /dev/md/phalanx-scratch --run --level=0 --raid-devices=2 {disks}")
    assert commands[1] == "mkfs.ext4 -q -E nodiscard -L phalanx-scratch /dev/md/phalanx-scratch"


@pytest.mark.parametrize(
    ("models", "with_devices"), [({"nvme0n1": EBS}, True), ({"nvme9n1": OWN}, True), ({"nvme1n1": OWN}, False)]
)
def test_without_a_blank_disk_of_its_own_nothing_happens(tmp_path, commands, models, with_devices):
    assert mounted(tmp_path, with_devices, **models) == ""
    assert commands == [] and not (tmp_path / "scratch").exists()


def test_the_directory_of_a_dlami_is_used(tmp_path, commands, monkeypatch):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text("36 35 98:0 / /opt/dlami/nvme rw - ext4 /dev/mapper/a rw\n")
    (tmp_path / "opt/dlami/nvme").mkdir(parents=True)
    monkeypatch.setattr(local_disks.files, "chown", lambda path, owner: None)
    mounted(tmp_path, nvme1n1=OWN)
    assert commands == [] and (tmp_path / "scratch").readlink() == Path("/opt/dlami/nvme")


def test_another_line_of_ours_stays_in_fstab(tmp_path, commands):
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/fstab").write_text("LABEL=root / ext4 defaults 0 1\n")
    files.add_to_block("/etc/fstab", "fs-1:/", "/efs", "efs", "tls", "0", "0", root=str(tmp_path))
    table = mounted(tmp_path, nvme1n1=OWN)
    assert "fs-1:/ /efs efs tls 0 0\nLABEL=phalanx-scratch" in table
    assert files.without_block(table) == "LABEL=root / ext4 defaults 0 1\n"
