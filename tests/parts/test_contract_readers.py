"""The node contract as its readers see it: a login shell, sshd, ssh."""

from __future__ import annotations

import shlex
import subprocess

import pytest
from small_image import MACHINE, apply, small_image


@pytest.fixture
def root(tmp_path):
    return small_image(tmp_path)


def test_every_shell_and_job_gets_the_same_variables(root):
    apply(root)
    expected = {
        "DEEPLEARNING_WORKERS_PATH": "/opt/deeplearning/workers",
        "DEEPLEARNING_WORKERS_COUNT": "2",
        "DEEPLEARNING_WORKER_GPU_COUNT": "0",
        "EFS_MOUNT": "/efs",
        "OMPI_MCA_orte_default_hostfile": "/opt/phalanx/hostfile",
        "PATH": MACHINE.path,
    }
    script = f". {root}/etc/profile.d/phalanx.sh; env -0"
    login = dict(
        line.split("=", 1)
        for line in subprocess.run(["sh", "-c", script], capture_output=True, text=True, env={}).stdout.split("\0")
        if line
    )
    environment = dict(
        shlex.split(line)[0].split("=", 1)
        for line in (root / "etc/environment").read_text().splitlines()
        if not line.startswith("#")
    )
    server = (root / "etc/ssh/sshd_config.d/60-phalanx.conf").read_text().splitlines()
    (line,) = [line for line in server if line.startswith("SetEnv")]
    sshd = dict(word.split("=", 1) for word in shlex.split(line)[1:])
    for found in (login, environment, sshd):
        assert expected.items() <= found.items()


def test_openssh_takes_the_client_configuration(root):
    apply(root)
    drop_in = root / "etc/ssh/ssh_config.d/60-phalanx.conf"
    done = subprocess.run(
        ["ssh", "-G", "-F", str(drop_in), "10.0.1.12"], capture_output=True, text=True, check=True, timeout=120
    )
    seen = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert seen["user"] == "phalanx"
    assert seen["identityfile"] == "/etc/ssh/phalanx/id_ed25519"
    assert seen["kexalgorithms"].startswith("curve25519-sha256")
