"""Repairs on this machine when ssh refuses a host."""

from __future__ import annotations

import pytest
from fake_cloud import AUTHORITY, FakeCloud

from phalanx import clouds
from phalanx.clouds.diagnosis import repair
from phalanx.clouds.protocol import SshRoute
from phalanx.cluster.cluster_record import Cluster, write_ssh_config
from phalanx.errors import ClusterGone
from phalanx.ssh.remote import ConnectionLost, HostRefused


def test_trust_is_renewed_from_the_table(tmp_path, monkeypatch):
    monkeypatch.setenv("PHALANX_STATE_DIR", str(tmp_path))
    cloud = FakeCloud()
    monkeypatch.setattr(clouds, "get", lambda name, region: cloud)
    cluster = Cluster("demo", "aws", "us-east-1", table="table", head_address="54.0.0.1")
    write_ssh_config(cluster, AUTHORITY, SshRoute())
    refused = HostRefused("its host key is not certified")
    assert not repair(cluster, refused)
    cloud.item = lambda table, key: {"public_key": "ssh-ed25519 AAAAnewhead"}
    assert repair(cluster, refused)
    assert "newhead" in (cluster.directory / "known_hosts").read_text()


def test_a_cluster_that_was_deleted_here_is_gone(tmp_path, monkeypatch):
    monkeypatch.setenv("PHALANX_STATE_DIR", str(tmp_path))
    with pytest.raises(ClusterGone, match="cluster demo was deleted"):
        repair(Cluster("demo", "aws", "us-east-1"), ConnectionLost("ssh failed"))
