"""What this machine keeps of a cluster."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from error_codes import raises_code
from fake_cloud import AUTHORITY, FakeAws, described

from phalanx import state_files
from phalanx.aws.model import StackState
from phalanx.cluster import keys, ready, ssh_config
from phalanx.cluster.cluster_record import Cluster
from phalanx.cluster.ready import record_ready
from phalanx.errors import ClusterError
from phalanx.spec.own_tags import CLUSTER_TAG


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("PHALANX_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


def saved(name="demo", **values):
    return Cluster(name, "local", "us-east-1", **{"stack_id": "arn", "head_address": "54.0.0.1", **values}).save()


def test_a_record_comes_back_as_it_was():
    cluster = saved(spec={"nodes": 4})
    assert Cluster.load("demo") == cluster


def test_the_only_cluster_needs_no_name():
    saved()
    assert Cluster.load().name == "demo"


def test_of_several_clusters_one_must_be_chosen():
    saved("one"), saved("two")
    with raises_code("which-cluster", "one, two"):
        Cluster.load()


def test_an_unknown_name_brings_the_nearest():
    saved("vision")
    with pytest.raises(ClusterError, match=r"did you mean 'vision'"):
        Cluster.load("visoin")


@pytest.mark.parametrize("name", ["../demo", "a/b", "", "-x", "1st"])
def test_a_name_can_t_leave_the_directory(name):
    with pytest.raises(ClusterError, match="can't be the name"):
        state_files.cluster_directory(name)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"name": "demo", "cloud": "aws", "region": "r", "newer": 1}'])
def test_a_damaged_record_is_reported(state, text):
    saved()
    (state / "clusters/demo/cluster.json").write_text(text)
    with pytest.raises(ClusterError, match="is damaged"):
        Cluster.load("demo")


@pytest.mark.parametrize("name", ['a"b', "a$b", "a\\b", "a\nb"])
def test_a_state_directory_that_ssh_would_misread_is_refused_before_anything_is_made(tmp_path, monkeypatch, name):
    monkeypatch.setenv("PHALANX_STATE_DIR", str(tmp_path / name))
    with raises_code("unusable-path") as reported:
        keys.make("demo")
    assert "PHALANX_STATE_DIR" in reported.value.hint
    assert not list(tmp_path.iterdir())


def test_the_ssh_config_trusts_one_authority_and_nothing_else(state):
    cluster = saved()
    ssh_config.write(cluster, AUTHORITY, ("ProxyUseFdpass yes",))
    text = cluster.ssh_config.read_text()
    assert "StrictHostKeyChecking yes" in text
    assert "ProxyUseFdpass yes" in text
    assert (state / "clusters/demo/known_hosts").read_text() == f"@cert-authority * {AUTHORITY}\n"


def test_a_new_authority_is_distinguished_from_the_known_one():
    cluster = saved()
    ssh_config.write(cluster, AUTHORITY, ())
    assert not ssh_config.write_authority(cluster, AUTHORITY)
    assert ssh_config.write_authority(cluster, "ssh-ed25519 other")


def test_a_cluster_that_is_not_ready_can_t_be_logged_in_to():
    with pytest.raises(ClusterError, match="not ready"):
        saved(head_address="").remote()


def test_forgetting_leaves_nothing_or_the_boot_logs(state):
    cluster = saved()
    state_files.write_private(cluster.directory / "boot-logs/i-1.log", "text")
    cluster.forget(keep_logs=True)
    assert [path.name for path in cluster.directory.iterdir()] == ["boot-logs"]
    assert state_files.known() == []
    cluster.forget()
    assert not cluster.directory.exists()


ADOPTED = {"Workers": "3", "InstanceType": "c5.large", "SharedDirectory": "/efs", "MinNodes": "2", "NodeTimeout": "600"}


def a_cloud(**parameters: str) -> SimpleNamespace:
    """A cloud with a ready stack of ours."""
    found = StackState(
        "demo", "arn:two", "CREATE_COMPLETE", tags={CLUSTER_TAG: "demo"}, parameters={**ADOPTED, **parameters}
    )
    return SimpleNamespace(
        name="local", region="eu-central-1", exists=lambda *_, **__: {"Stacks": [described(found)]}, found=found
    )


def test_an_adoption_replaces_no_record_and_no_key_of_another_cluster():
    known = saved()
    with raises_code("cluster-exists", "demo: arn"):
        ready.adopt(a_cloud(SshPublicKey="ssh-ed25519 AAAA"), "demo")
    assert Cluster.load("demo") == known


def test_an_adopted_cluster_keeps_the_users_own_file_system():
    cloud = a_cloud(FileSystemId="fs-mine")
    assert ready.settings(cloud, cloud.found)["file_system"] == "fs-mine"
    assert "file_system" not in ready.settings(a_cloud(), a_cloud().found)


def test_an_adopted_cluster_has_the_nodes_of_its_stack_and_the_head():
    cloud = a_cloud(Workers="3")
    assert ready.settings(cloud, cloud.found)["nodes"] == 4


@pytest.mark.parametrize(
    ("place", "name", "value"),
    [
        ("outputs", "HeadAddress", "54.0.0.1\n    ProxyCommand touch /tmp/x"),
        ("outputs", "HeadAddress", "54.0.0.1;touch"),
        ("outputs", "HeadAddress", "-oProxyCommand=touch"),
        ("outputs", "RosterTable", "table\rx"),
        ("outputs", "HeadQueue", "https://h.test/ x"),
        ("outputs", "SharedFileSystem", "fs-1\u2028"),
        ("parameters", "InstanceType", "c5.large\nProxyCommand x"),
        ("parameters", "SharedDirectory", "/efs $(touch x)"),
    ],
)
def test_a_stack_with_values_of_another_template_writes_nothing_for_ssh(state, place, name, value):
    cloud = FakeAws()
    made = cloud.stacks[cloud.put("demo", "CREATE_COMPLETE")]
    made.state = replace(made.state, **{place: {**getattr(made.state, place), name: value}})
    with raises_code("not-a-phalanx-stack"):
        record_ready(cloud, made.state, {"shared": "/efs"})
    assert not (state / "clusters").exists()


def test_no_value_becomes_a_second_line_for_ssh(state):
    cluster = saved(head_address="54.0.0.1\n    ProxyCommand touch /tmp/x")
    with pytest.raises(ClusterError, match="ProxyCommand"):
        ssh_config.write(cluster, AUTHORITY, ())
    assert not (state / "clusters/demo/ssh_config").exists()
