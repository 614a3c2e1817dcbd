"""`up` with a cloud in memory: from any earlier state, and with any failure."""

from __future__ import annotations

import time

import pytest
from error_codes import raises_code
from fake_cloud import HEAD_FAILED, STACK, FakeAws, demo, event, roster, up

from phalanx import state_files
from phalanx.aws.model import Running
from phalanx.cluster import bring_up, keys
from phalanx.cluster.bring_up import BringUp
from phalanx.cluster.cluster_record import Cluster
from phalanx.errors import CloudError, ClusterError, StackFailed
from phalanx.plan.machine_images import Image
from phalanx.ssh.remote import ConnectionLost, NotListening, Remote

pytestmark = pytest.mark.usefixtures("in_memory")


def test_up_leaves_a_record_that_ssh_can_use():
    result, _ = up(FakeAws())
    assert not result.already
    cluster = Cluster.load("demo")
    assert (cluster.head_address, cluster.shared, cluster.slots) == ("54.0.0.1", "/efs", 2)
    assert "ProxyCommand dial %h %p" in cluster.ssh_config.read_text()


def test_a_head_that_ssh_does_not_reach_is_reported_and_the_cluster_kept(monkeypatch):
    def refuse(remote):
        raise ConnectionLost("can't log in to deeplearning-master: timeout", "Does `ssh_from` allow your address?")

    monkeypatch.setattr(Remote, "connect", refuse)
    result, notes = up(FakeAws())
    assert notes == ["warning: can't log in to deeplearning-master: timeout. Does `ssh_from` allow your address?"]
    assert result.cluster.ready


@pytest.mark.parametrize(("name", "user"), [("debian-12-amd64-20261101", "admin"), ("al2023-ami-2023.12", "ec2-user")])
def test_the_administrator_is_the_image_s_own(monkeypatch, name, user):
    cloud = FakeAws()
    monkeypatch.setattr(cloud, "image", lambda _: Image("ami-1", name, "x86_64", "/dev/xvda", 8))
    assert up(cloud)[0].cluster.admin_user == user


NOBODY = "can't log in to deeplearning-master: its address belongs to no running instance"


def test_a_head_that_is_ready_before_its_address_is_awaited(monkeypatch):
    tries = []

    def refuse_twice(remote):
        tries.append(remote)
        if len(tries) < 3:
            raise NotListening(NOBODY)

    monkeypatch.setattr(Remote, "connect", refuse_twice)
    monkeypatch.setattr(bring_up, "_LOGIN_RETRIES_S", (0.0, 0.0, 0.0))
    _, notes = up(FakeAws())
    assert len(tries) == 3
    assert notes == [f"waiting for the head to accept ssh: {NOBODY}"]


def test_the_key_that_was_made_is_the_key_that_is_sent():
    cloud = FakeAws()
    up(cloud)
    assert cloud.state("demo").parameters["SshPublicKey"] == keys.public("demo")


def test_a_second_up_changes_nothing():
    cloud = FakeAws()
    up(cloud)
    result, _ = up(cloud)
    assert result.already
    assert cloud.made == 1


def test_options_of_jobs_are_no_settings_of_a_cluster():
    cloud = FakeAws()
    up(cloud)
    for job in ({"restarts": 3}, {"restarts": 3, "env": {"A": "1"}}, None):
        assert up(cloud, job=job)[0].already


def test_up_with_other_settings_says_which():
    cloud = FakeAws()
    up(cloud)
    with pytest.raises(ClusterError, match=r"other settings: nodes: 2 → 3"):
        up(cloud, nodes=3)


def test_up_after_scale_agrees_with_the_old_number_and_with_the_new_one():
    cloud = FakeAws()
    up(cloud)
    cloud.roster = roster(5)
    for nodes in (2, 5):
        result, _ = up(cloud, nodes=nodes)
        assert (result.already, result.roster.requested) == (True, 5)
    with pytest.raises(ClusterError, match=r"other settings: nodes: 5 → 3") as caught:
        up(cloud, nodes=3)
    assert "`phalanx scale 3`" in caught.value.hint


def test_a_killed_up_is_picked_up_by_the_next():
    cloud = FakeAws()
    killed = BringUp(cloud, demo()).steps()
    next(killed)
    killed.close()
    assert not Cluster.load("demo").ready
    result, notes = up(cloud)
    assert cloud.made == 1
    assert "following it" in notes[0]
    assert result.cluster.ready


def test_of_two_ups_at_once_the_refused_one_follows_the_other():
    class Overtaken(FakeAws):
        def create_stack(self, **given):
            super().create_stack(**given)
            raise CloudError("AlreadyExistsException")

    result, _ = up(Overtaken())
    assert result.cluster.ready


def test_a_stack_of_somebody_else_is_not_touched():
    cloud = FakeAws()
    cloud.put("demo", "CREATE_COMPLETE", ours=False)
    with raises_code("name-taken"):
        up(cloud)
    assert cloud.state("demo").status == "CREATE_COMPLETE"


def test_a_cluster_of_another_machine_can_t_be_entered():
    cloud = FakeAws()
    cloud.put("demo", "CREATE_COMPLETE", parameters={"SshPublicKey": "ssh-ed25519 AAAA other"})
    with pytest.raises(ClusterError, match="another machine's key"):
        up(cloud)


@pytest.mark.parametrize("status", ["ROLLBACK_COMPLETE", "CREATE_FAILED", "DELETE_FAILED", "ROLLBACK_IN_PROGRESS"])
def test_remains_of_a_failed_attempt_are_removed_first(status):
    cloud = FakeAws()
    cloud.put("demo", status, [event(1, "demo", "ROLLBACK_COMPLETE", STACK)])
    result, notes = up(cloud)
    assert result.cluster.ready
    assert "removing its remains first" in notes[-1]


def test_a_stack_whose_update_could_not_be_undone_is_left_alone():
    cloud = FakeAws()
    cloud.put("demo", "UPDATE_ROLLBACK_FAILED")
    with raises_code("stack-stuck", "UPDATE_ROLLBACK_FAILED") as refused:
        up(cloud)
    assert "continue-update-rollback --stack-name demo" in refused.value.hint


def test_a_failure_shows_the_reason_keeps_the_logs_and_frees_the_name(in_memory):
    logs = {"10.0.0.5": "line 1\nfalse: exit 1", "10.0.0.6": "fine", "2026/11/[$LATEST]1": "START"}
    cloud = FakeAws(script=list(HEAD_FAILED), logs=logs)
    with pytest.raises(StackFailed) as failure:
        up(cloud)
    assert "`false` ended with 1" in failure.value.message
    assert "false: exit 1" in failure.value.message
    assert "nothing is left" in failure.value.hint
    assert "START" not in failure.value.message
    assert (in_memory / "clusters/demo/boot-logs/10.0.0.5.log").read_text() == "line 1\nfalse: exit 1\n"
    assert len(list((in_memory / "clusters/demo/boot-logs").glob("*.log"))) == 3
    assert cloud.state("demo") is None
    assert state_files.known() == []


def test_a_refused_creation_leaves_no_record():
    with pytest.raises(CloudError, match="not authorized"):
        up(FakeAws(refuse_create=CloudError("not authorized")))
    assert state_files.known() == []


def test_the_reason_of_a_failure_is_shown_even_when_its_remains_can_t_be_deleted(monkeypatch):
    cloud = FakeAws(script=list(HEAD_FAILED))

    def refuse(**_):
        raise CloudError("DeleteStack was refused", "Request a policy.")

    monkeypatch.setattr(cloud, "delete_stack", refuse)
    with raises_code("stack-failed", "`false` ended with 1", "DeleteStack was refused"):
        up(cloud)
    assert state_files.known() == ["demo"]


def test_a_changed_lease_of_a_running_cluster_counts_from_now():
    cloud = FakeAws()
    up(cloud)
    cloud.running_now = Running(nodes=2, stopped=False, end_s=None)
    result, notes = up(cloud, lease_s=7200)
    assert result.already and result.changed == {"lease_s": (None, 7200)}
    assert cloud.ends == [pytest.approx(time.time() + 7200, abs=60)]
    assert notes[0].startswith("the lease or the budget has changed: all nodes stop 20")
    assert up(cloud, lease_s=7200)[1] == [] and len(cloud.ends) == 1
    assert up(cloud, lease_s=0)[1] == ["the lease or the budget has changed: all nodes stop never"]
    assert cloud.ends[1:] == [None]
