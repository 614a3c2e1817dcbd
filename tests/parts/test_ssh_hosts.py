"""The user's own ssh configuration, as ssh itself reads it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from clusters import spec
from fake_cloud import FakeAws

from phalanx import cli
from phalanx.cluster import ssh_config
from phalanx.cluster.bring_up import BringUp
from phalanx.cluster.cluster_record import Cluster
from phalanx.errors import ClusterError
from phalanx.ssh.remote import Remote


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("PHALANX_STATE_DIR", str(tmp_path / "a state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def cluster(name="demo", route=None) -> Cluster:
    made = Cluster(name, "aws", "us-east-1", "arn", "54.0.0.1", "/efs", nodes=2, spec={"nodes": 3}).save()
    ssh_config.write(made, "ssh-ed25519 AAAA", route or ())
    return made


def as_ssh_reads(config: Path, host: str) -> dict[str, str]:
    done = subprocess.run(["ssh", "-G", "-F", str(config), host], capture_output=True, text=True, check=True)
    return dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)


def test_the_head_and_every_worker_that_was_asked_for_have_a_name(home, tmp_path):
    (tmp_path / "hosts").write_text(ssh_config.hosts_text(cluster()))
    head = as_ssh_reads(tmp_path / "hosts", "demo")
    assert (head["hostname"], head["user"], head["hostkeyalias"]) == ("54.0.0.1", "phalanx", "deeplearning-worker1")
    assert head["stricthostkeychecking"] in ("true", "yes")
    assert "known_hosts" in head["userknownhostsfile"]
    worker = as_ssh_reads(tmp_path / "hosts", "demo-worker3")
    assert (worker["hostname"], worker["proxyjump"]) == ("deeplearning-worker3", "demo")
    assert "proxyjump" not in as_ssh_reads(tmp_path / "hosts", "demo-worker4")
    assert as_ssh_reads(tmp_path / "hosts", "elsewhere")["user"] != "phalanx"


def test_only_the_head_is_dialled_by_the_local_cloud(home, tmp_path):
    local = ("ProxyCommand dial %h %p", "ProxyUseFdpass yes", "KexAlgorithms ^curve25519-sha256")
    (tmp_path / "hosts").write_text(ssh_config.hosts_text(cluster(route=local)))
    assert as_ssh_reads(tmp_path / "hosts", "demo")["proxycommand"] == "dial %h %p"
    worker = as_ssh_reads(tmp_path / "hosts", "demo-worker2")
    assert (worker["proxyjump"], worker["proxyusefdpass"]) == ("demo", "no")


def test_one_line_in_the_users_file_serves_all_clusters(home):
    config = home / ".ssh" / "config"
    first = ssh_config.include_hosts(cluster())
    assert first.added
    assert config.read_text() == first.line + "\n"
    assert config.stat().st_mode & 0o777 == 0o600
    assert not ssh_config.include_hosts(cluster("other")).added
    assert config.read_text().count("Include") == 1
    assert as_ssh_reads(config, "other-worker2")["proxyjump"] == "other"
    assert as_ssh_reads(config, "demo")["hostname"] == "54.0.0.1"
    Cluster.load("demo").forget()
    assert as_ssh_reads(config, "demo")["hostname"] == "demo"


def test_what_the_user_wrote_stays_and_a_link_stays_one(home, tmp_path):
    (home / ".ssh").mkdir()
    (tmp_path / "dotfile").write_text("Host mine\n    User me\n")
    (tmp_path / "dotfile").chmod(0o644)
    (home / ".ssh/config").symlink_to(tmp_path / "dotfile")
    ssh_config.include_hosts(cluster())
    assert (home / ".ssh/config").is_symlink()
    assert (tmp_path / "dotfile").stat().st_mode & 0o777 == 0o644
    assert as_ssh_reads(tmp_path / "dotfile", "mine")["user"] == "me"
    assert as_ssh_reads(tmp_path / "dotfile", "demo")["user"] == "phalanx"


def test_a_cluster_that_is_not_ready_has_no_hosts(home):
    with pytest.raises(ClusterError, match="is not ready"):
        ssh_config.hosts_text(Cluster("demo", "aws", "us-east-1"))


def test_the_command_prints_or_installs_and_says_how_to_undo(home, capsys):
    cluster()
    assert cli.execute(["ssh-config"]) == 0
    assert capsys.readouterr().out.startswith("Host demo demo-head demo-worker1\n")
    assert cli.execute(["ssh-config", "--install"]) == 0
    reported = capsys.readouterr()
    assert "ssh demo, ssh demo-worker2" in reported.out
    assert "To undo this, delete that line" in reported.err
    assert cli.execute(["ssh-config", "--install"]) == 0
    assert "already includes it" in capsys.readouterr().err


def test_a_cluster_that_comes_up_again_is_known_to_plain_ssh_at_once(home, monkeypatch):
    monkeypatch.setattr(Remote, "connect", lambda _: None)
    assert list(BringUp(FakeAws(), spec()).steps())
    (home / ".ssh").mkdir()
    config = home / ".ssh" / "config"
    config.write_text(f'Include "{Cluster.load("demo").directory.parent}/*/ssh_hosts"\n')
    assert as_ssh_reads(config, "demo-worker2")["proxyjump"] == "demo"
