"""Certificates by the real ssh-keygen, and a real sshd that accepts them."""

from __future__ import annotations

import getpass
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from ports import free_port
from rosters import a_node

from phalanx.node import trust
from phalanx.node.roster import Node


@pytest.fixture(scope="module")
def keys(tmp_path_factory) -> Path:
    """Host and user keys of two nodes, and an authority."""
    directory = tmp_path_factory.mktemp("keys")
    for name in ("host1", "user1", "host2", "user2"):
        trust.make_key(str(directory / name), name)
    return directory


def node(keys: Path, number: int) -> Node:
    public = {kind: (keys / f"{kind}{number}.pub").read_text().strip() for kind in ("host", "user")}
    return a_node(number, host_key=public["host"], user_key=public["user"])


@pytest.fixture(scope="module")
def signed(keys) -> tuple[trust.Authority, dict[str, tuple[str, str]]]:
    authority = an_authority(keys, "127.0.0.0/8,10.0.0.0/16")
    return authority, authority.sign([node(keys, 1), node(keys, 2)], "phalanx")


def an_authority(keys: Path, networks: str) -> trust.Authority:
    """Return the authority, of a cluster with these addresses."""
    return trust.Authority(str(keys / "authority/key"), "demo", networks)


def describe(certificate: str) -> str:
    done = subprocess.run(
        ["ssh-keygen", "-L", "-f", "-"], input=certificate, capture_output=True, text=True, check=True, timeout=120
    )
    return " ".join(done.stdout.split())


def test_a_key_is_made_once(keys):
    before = (keys / "host1").read_text()
    assert trust.make_key(str(keys / "host1"), "again") == (keys / "host1.pub").read_text().strip()
    assert (keys / "host1").read_text() == before
    assert (keys / "host1").stat().st_mode & 0o777 == 0o600


def test_many_certificates_need_only_a_few_files_at_a_time(keys, tmp_path, monkeypatch):
    """The head's disk may have room for a thousand files."""
    run, seen = trust.run, []

    def counted(argv: list[str], timeout_s: float) -> None:
        seen.append(sum(len(files) for _, _, files in os.walk(tmp_path)))
        if argv[2] == "-s":
            for path in filter(lambda word: word.endswith(".pub"), argv):
                Path(path.removesuffix(".pub") + "-cert.pub").write_text("a certificate")
        else:
            run(argv, timeout_s)

    monkeypatch.setattr(trust, "run", counted)
    authority = trust.Authority(str(tmp_path / "authority/key"), "demo", "10.0.0.0/8")
    nodes = [node(keys, 1)._replace(instance_id=f"i-{number:x}") for number in range(150)]
    assert set(authority.sign(nodes, "phalanx").values()) == {("a certificate", "a certificate")}
    assert max(seen) < 300


def test_a_host_certificate_names_the_host_and_nothing_else(signed):
    _, certificates = signed
    head = describe(certificates["i-1"][0])
    assert "ssh-ed25519-cert-v01@openssh.com host certificate" in head
    principals = "Principals: deeplearning-worker1 10.0.1.11 ip-10-0-1-11 deeplearning-master Critical"
    assert principals in head
    assert "Principals: deeplearning-worker2 10.0.1.12 ip-10-0-1-12 Critical" in describe(certificates["i-2"][0])


def test_a_user_certificate_is_good_for_the_job_user_for_a_day(signed):
    _, certificates = signed
    user = describe(certificates["i-2"][1])
    assert "user certificate" in user and "Principals: phalanx Critical" in user
    assert "Critical Options: source-address 127.0.0.0/8,10.0.0.0/16 Extensions" in user
    fields = user.split()
    begin, end = (time.mktime(time.strptime(fields[fields.index(w) + 1], "%Y-%m-%dT%H:%M:%S")) for w in ("from", "to"))
    assert 24 * 3600 <= end - begin <= 24 * 3600 + 400
    assert begin <= time.time() - 250


def test_nothing_but_the_authority_stays(keys, signed):
    assert sorted(path.name for path in (keys / "authority").iterdir()) == ["key", "key.pub"]
    assert (keys / "authority/key").stat().st_mode & 0o777 == 0o600


def test_all_jobs_run_and_the_first_error_comes_through():
    done = []

    def fail() -> None:
        raise ValueError("one of them")

    with pytest.raises(ValueError, match="one of them"):
        trust.in_parallel([fail, *[lambda n=n: done.append(n) for n in range(20)]], 4)
    assert sorted(done) == list(range(20))


def test_only_the_listening_sshd_is_signalled(tmp_path, monkeypatch):
    for pid, line in {
        "11": b"sshd: /usr/sbin/sshd -D [listener] 0 of 10-100 startups\0",
        "12": b"sshd: phalanx [priv]\0",
        "13": b"grep\0sshd: [listener]\0",
    }.items():
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "cmdline").write_bytes(line)
    reported = []
    monkeypatch.setattr(os, "kill", lambda pid, number: reported.append((pid, number)))
    assert trust.reload_sshd(str(tmp_path)) == 1
    assert reported == [(11, signal.SIGHUP)]


@pytest.fixture
def server(keys, signed, tmp_path):
    """A real sshd with node 1's host certificate; yields its port and the file of revoked keys."""
    authority, certificates = signed
    (tmp_path / "host").write_text((keys / "host1").read_text())
    (tmp_path / "host").chmod(0o600)
    (tmp_path / "host-cert.pub").write_text(certificates["i-1"][0] + "\n")
    (tmp_path / "authority.pub").write_text(authority.public_key + "\n")
    (tmp_path / "principals").write_text("phalanx\n")
    revoked = tmp_path / "revoked"
    revoked.write_text("")
    port = free_port()
    options = {
        "ListenAddress": f"127.0.0.1:{port}",
        "HostKey": tmp_path / "host",
        "HostCertificate": tmp_path / "host-cert.pub",
        "TrustedUserCAKeys": tmp_path / "authority.pub",
        "AuthorizedPrincipalsFile": tmp_path / "principals",
        "RevokedKeys": revoked,
        "PidFile": "none",
        "StrictModes": "no",
        "UsePAM": "no",
        "AuthorizedKeysFile": "none",
        "KexAlgorithms": "curve25519-sha256",
    }
    (tmp_path / "sshd_config").write_text("".join(f"{key} {value}\n" for key, value in options.items()))
    Path("/run/sshd").mkdir(exist_ok=True)
    command = ["/usr/sbin/sshd", "-D", "-e", "-f", str(tmp_path / "sshd_config")]
    with open(tmp_path / "log", "w") as log, subprocess.Popen(command, stderr=log) as process:
        deadline = time.monotonic() + 120
        while "listening" not in (tmp_path / "log").read_text():
            assert time.monotonic() < deadline and process.poll() is None, (tmp_path / "log").read_text()
            time.sleep(0.005)
        yield port, revoked
        process.terminate()


def log_in(keys: Path, signed, tmp_path: Path, port: int, alias: str) -> subprocess.CompletedProcess[str]:
    """Log in with node 2's key and certificate, to the host under the name `alias`."""
    authority, certificates = signed
    (tmp_path / "user-cert.pub").write_text(certificates["i-2"][1] + "\n")
    (tmp_path / "known").write_text(f"@cert-authority * {authority.public_key}\n")
    options = {
        "BatchMode": "yes",
        "StrictHostKeyChecking": "yes",
        "UserKnownHostsFile": tmp_path / "known",
        "GlobalKnownHostsFile": "none",
        "HostKeyAlias": alias,
        "IdentityFile": keys / "user2",
        "CertificateFile": tmp_path / "user-cert.pub",
        "IdentitiesOnly": "yes",
    }
    command = ["ssh", "-F", "none", "-p", str(port), *(f"-o{key}={value}" for key, value in options.items())]
    user = getpass.getuser()
    return subprocess.run([*command, f"{user}@127.0.0.1", "echo in"], capture_output=True, text=True, timeout=120)


@pytest.mark.skipif(os.getuid() != 0, reason="sshd logs in other users as root only")
def test_openssh_believes_the_certificates_until_they_are_revoked(keys, signed, tmp_path, server):
    port, revoked = server
    assert log_in(keys, signed, tmp_path, port, "deeplearning-worker1").stdout == "in\n"
    other = log_in(keys, signed, tmp_path, port, "deeplearning-worker2")
    assert other.returncode == 255 and "name is not a listed principal" in other.stderr
    revoked.write_text(node(keys, 2).user_key + "\n")
    assert log_in(keys, signed, tmp_path, port, "deeplearning-worker1").returncode == 255


@pytest.mark.skipif(os.getuid() != 0, reason="sshd logs in other users as root only")
def test_a_certificate_is_no_use_outside_of_the_vpc(keys, signed, tmp_path, server):
    authority = an_authority(keys, "10.0.0.0/16")
    elsewhere = authority, authority.sign([node(keys, 2)], "phalanx")
    assert log_in(keys, elsewhere, tmp_path, server[0], "deeplearning-worker1").returncode == 255


def test_a_new_authority_signs_for_old_keys(keys, tmp_path):
    """A replaced head has another authority, and the keys in the roster suffice to sign again."""
    authority = trust.Authority(str(tmp_path / "key"), "demo", "10.0.0.0/16")
    two = node(keys, 2)
    certificates = authority.sign([two._replace(name="deeplearning-worker7")], "phalanx")
    assert "deeplearning-worker7" in describe(certificates[two.instance_id][0])
