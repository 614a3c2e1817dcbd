"""The node contract as its readers see it: a login shell, sshd, ssh."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest
from small_image import MACHINE, apply, small_image

from phalanx.node import contract, trust


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


@pytest.mark.parametrize(
    ("said", "known"),
    [
        ("OpenSSH_9.2, OpenSSL 3.0.19 27 Jan 2026", (9, 2)),
        # one that does not know -V
        ("sshd: illegal option -- V\nOpenSSH_7.4p1, OpenSSL 1.0.2k-fips  26 Jan 2017\nusage: sshd [-46Ddei", (7, 4)),
        ("OpenSSH_10.0p2 Debian-7, OpenSSL 3.5.0", (10, 0)),
        ("", (0, 0)),
    ],
)
def test_the_version_of_sshd(tmp_path, said, known):
    program = tmp_path / "usr/sbin/sshd"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{said}\nEND\nexit 1\n")
    program.chmod(0o755)
    assert trust.version_of_sshd(str(tmp_path)) == known
    assert trust.version_of_sshd(str(tmp_path / "usr")) == (0, 0)


def test_this_machine_s_sshd_takes_the_server_configuration(root):
    """With every setting that depends on its version."""
    program = "/usr/sbin/sshd"
    if not os.access(program, os.X_OK):
        pytest.skip("there is no sshd")
    machine = MACHINE._replace(openssh=trust.version_of_sshd())
    text = contract._server({"A": "b"}, machine, 4)
    for path in ("host-cert.pub", "revoked", "authority.pub"):
        text = "\n".join(line for line in text.splitlines() if not line.endswith(path))
    config = root / "sshd_config"
    config.write_text(text + "\n")
    key = root / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True, timeout=120)
    if not os.getuid():
        # On Debian, sshd's unit makes it.
        Path("/run/sshd").mkdir(exist_ok=True)
    shown = subprocess.run(
        [program, "-T", "-C", "user=x,host=x,addr=10.0.1.1", "-f", config, "-h", key],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "maxstartups 1000:30:2000" in shown.stdout, shown.stderr
    assert ("persourcemaxstartups 100" in shown.stdout) == (trust.version_of_sshd() >= (8, 5))
