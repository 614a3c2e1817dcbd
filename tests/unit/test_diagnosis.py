"""Repairs on this machine when ssh refuses a host."""

from __future__ import annotations

import pytest
from fake_cloud import AUTHORITY, FakeAws

from phalanx import connection
from phalanx.cluster import ssh_config
from phalanx.cluster.cluster_record import Cluster
from phalanx.cluster.diagnosis import repair
from phalanx.connection import attached
from phalanx.errors import ClusterGone
from phalanx.ssh.remote import ConnectionLost, HostRefused


def test_trust_is_renewed_from_the_table(tmp_path, monkeypatch):
    monkeypatch.setenv("PHALANX_STATE_DIR", str(tmp_path))
    cloud = FakeAws()
    cloud.name = "aws"
    monkeypatch.setattr(connection, "connect", lambda name, region: cloud)
    cluster = attached(Cluster("demo", "aws", "us-east-1", table="table", head_address="54.0.0.1"))
    ssh_config.write(cluster, AUTHORITY, ())
    refused = HostRefused("its host key is not certified")
    assert not repair(cluster, refused)
    cloud.get_item = lambda **_: {"Item": {"public_key": {"S": "ssh-ed25519 AAAAnewhead"}}}
    assert repair(cluster, refused)
    assert "newhead" in (cluster.directory / "known_hosts").read_text()


@pytest.mark.parametrize(("address", "reached"), [("54.0.0.1", "54.0.0.1"), ("i-0old", "i-1")])
def test_how_ssh_reaches_the_head_is_written_again_as_this_version_does(tmp_path, monkeypatch, address, reached):
    monkeypatch.setenv("PHALANX_STATE_DIR", str(tmp_path))
    cloud = FakeAws()
    cloud.name = "aws"
    monkeypatch.setattr(connection, "connect", lambda name, region: cloud)
    stack_id = cloud.put("demo", "CREATE_COMPLETE")
    cluster = Cluster("demo", "aws", "us-east-1", stack_id, table="table", head_address=address).save()
    earlier = "Host deeplearning-master\n    HostName 54.0.0.1\n"
    cluster.ssh_config.write_text(earlier)
    lost = ConnectionLost("can't log in to deeplearning-worker1: its name is unknown")
    assert repair(attached(cluster), lost)
    assert f"Host deeplearning-worker1\n    HostName {reached}\n" in cluster.ssh_config.read_text()
    now = attached(Cluster.load("demo"))
    assert now.head_address == reached
    assert not repair(now, lost)


def test_a_cluster_that_was_deleted_here_is_gone(tmp_path, monkeypatch):
    monkeypatch.setenv("PHALANX_STATE_DIR", str(tmp_path))
    with pytest.raises(ClusterGone, match="cluster demo was deleted"):
        repair(Cluster("demo", "aws", "us-east-1"), ConnectionLost("ssh failed"))


def test_a_cluster_has_one_connection_to_its_cloud():
    cluster = attached(Cluster("demo", "local", "us-east-1"))
    assert cluster.aws() is cluster.aws()
    assert attached(Cluster("demo", "local", "us-east-1")).aws() is not cluster.aws()
