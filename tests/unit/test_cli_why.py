"""`phalanx why`, with a cloud in memory: which of a stack's operations it speaks of, and how a quota stands."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
from clusters import FACTS, aws_spec
from fake_cloud import HEAD_FAILED, READY, STACK, UPDATED, event

from phalanx.aws.model import ScalingActivity
from phalanx.cluster.cluster_record import Cluster
from phalanx.errors import CloudUnreachable
from phalanx.plan import quotas


def of_stack(number, *statuses):
    """The stack's own events."""
    return [event(number + later, "demo", status, STACK) for later, status in enumerate(statuses)]


def update_fails(number, reason):
    begun, failed = of_stack(number, "UPDATE_IN_PROGRESS"), event(number + 1, "HeadGroup", "UPDATE_FAILED", "", reason)
    return [*begun, failed, *of_stack(number + 2, "UPDATE_ROLLBACK_IN_PROGRESS")]


def update_is_taken_back(number, reason):
    back = of_stack(number + 3, "UPDATE_ROLLBACK_COMPLETE_CLEANUP_IN_PROGRESS", "UPDATE_ROLLBACK_COMPLETE")
    return [*update_fails(number, reason), *back]


def deletion_fails(number, reason):
    left = event(number + 1, "Vpc", "DELETE_FAILED", "AWS::EC2::VPC", reason)
    return [*of_stack(number, "DELETE_IN_PROGRESS"), left, *of_stack(number + 2, "DELETE_FAILED")]


KEY, KIND, NEIGHBOUR = "The key pair 'mine' does not exist", "OptInRequired", "has dependencies and cannot be deleted"
CLEANED = [
    *UPDATED[:-1],
    event(24, "OldGroup", "DELETE_FAILED", "AWS::EC2::SecurityGroup", "resource sg-1 has a dependent object"),
    *of_stack(25, "UPDATE_COMPLETE"),
]
LIVES = {
    "created, and nothing else": ([READY], None),
    "updated": ([READY, UPDATED], None),
    "updated after an update that was taken back": ([READY, update_is_taken_back(7, KEY), UPDATED], None),
    "updated, and something old is left": ([READY, CLEANED], None),
    "being updated after an update that was taken back": (
        [READY, update_is_taken_back(7, KEY), of_stack(20, "UPDATE_IN_PROGRESS")],
        None,
    ),
    "an update that was taken back": ([READY, update_is_taken_back(7, KEY)], "key pair"),
    "two updates that were taken back": (
        [READY, update_is_taken_back(7, KEY), update_is_taken_back(20, KIND)],
        "Marketplace",
    ),
    "an update that can't be taken back": (
        [
            READY,
            update_fails(7, KEY),
            [event(10, "WorkersGroup", "UPDATE_FAILED", "", "Rate exceeded")],
            of_stack(11, "UPDATE_ROLLBACK_FAILED"),
        ],
        "key pair",
    ),
    "an update whose rollback somebody continues": (
        [
            READY,
            update_fails(7, KEY),
            of_stack(10, "UPDATE_ROLLBACK_FAILED", "UPDATE_ROLLBACK_IN_PROGRESS"),
        ],
        "key pair",
    ),
    "a creation that was rolled back": ([HEAD_FAILED], "not among the causes"),
    "a creation whose rollback failed": (
        [HEAD_FAILED[:-1], [event(6, "Vpc", "DELETE_FAILED", "", NEIGHBOUR)], of_stack(7, "ROLLBACK_FAILED")],
        "did not make is in the cluster's VPC",
    ),
    "a deletion that failed, of a good cluster": ([READY, deletion_fails(7, NEIGHBOUR)], "in the cluster's VPC"),
    "a deletion that failed, after an update did": (
        [READY, update_is_taken_back(7, KEY), deletion_fails(20, NEIGHBOUR)],
        "in the cluster's VPC",
    ),
    "a second deletion that failed": ([READY, deletion_fails(7, NEIGHBOUR), deletion_fails(20, KIND)], "Marketplace"),
    "the deletion of what could not be created": ([HEAD_FAILED, of_stack(7, "DELETE_IN_PROGRESS")], "not among"),
    "the deletion of a good cluster": ([READY, UPDATED, of_stack(20, "DELETE_IN_PROGRESS")], None),
}


@pytest.mark.parametrize("life", LIVES, ids=list(LIVES))
def test_why_speaks_of_the_stack_s_last_operation(phalanx, cloud, life):
    history, cause = LIVES[life]
    cloud.past(*history)
    cloud.logs = {}
    assert phalanx("why", "--json") == 0
    found = json.loads(phalanx.out)
    assert (found["cause"] is None) if cause is None else (cause in (found["cause"] or "")), found


def test_why_shows_what_stopped_a_rollback_beside_what_made_it_necessary(phalanx, cloud):
    cloud.past(*LIVES["an update that can't be taken back"][0])
    assert phalanx("why") == 0
    assert "the EC2 key pair does not exist" in phalanx.out
    assert "Rate exceeded" in phalanx.out


VCPUS = "You have requested more vCPU capacity than your current vCPU limit of 32 allows for the instance bucket …"
SPEC = "name: demo\ncloud: aws\nnodes: 3\nmin: 1\nssh_from: 203.0.113.0/24\n"


@pytest.fixture
def account(cloud, tmp_path, monkeypatch):
    """A cluster on AWS that found its quota of vCPUs used up; of each quota others use 20, and 32 is the limit."""
    cloud.past(HEAD_FAILED)
    cloud.activities_now["head"] = [
        ScalingActivity(101.0, 102.0, "Launching a new EC2 instance.", "…", "Failed", VCPUS)
    ]
    cloud.asked = []

    def facts(spec, key):
        cloud.asked.append(spec)
        found = [replace(one, limit=32, used=20) for one in quotas.of(spec, 8, 2 if spec.head else None)]
        return replace(FACTS, cloud="aws", quotas=tuple(found))

    monkeypatch.setattr(cloud, "facts", facts)
    (tmp_path / "phalanx.yaml").write_text(SPEC)
    return cloud


def shown(phalanx, *arguments):
    """What `why` says of quotas."""
    assert phalanx("why", "--json", *arguments) == 0
    found = json.loads(phalanx.out)
    assert "quota of vCPUs" in found["cause"]
    return [one["text"] for one in found["evidence"] if one["source"] == "Service Quotas"]


def test_why_shows_the_scarcest_quota_that_the_cause_can_mean(phalanx, account, tmp_path):
    (tmp_path / "phalanx.yaml").write_text(f"{SPEC}type: g5.2xlarge\nhead: {{type: c5.large}}\n")
    (text,) = shown(phalanx)
    assert "“Running On-Demand G and VT instances” (L-DB2E81BA) leaves 12 of 32 vCPUs in us-east-1 (20 in use" in text
    assert "and 16 are needed. Request more: `aws service-quotas " in text and text.endswith("--desired-value 36`")
    assert phalanx("why") == 0
    assert phalanx.out.splitlines()[2].startswith("  Service Quotas: your quota “Running On-Demand G and VT")


def test_why_asks_for_each_of_the_types(phalanx, account, tmp_path):
    (tmp_path / "phalanx.yaml").write_text(f"{SPEC}type: [c5.large, g5.2xlarge]\nnodes: 1\n".replace("nodes: 3\n", ""))
    (text,) = shown(phalanx)
    assert "leaves 12 of 32 vCPUs in us-east-1 (20 in use by others), and 8 are needed" in text
    assert [spec.types for spec in account.asked] == [("c5.large",), ("g5.2xlarge",)]


def test_why_asks_about_the_cluster_of_the_record_where_its_file_is_elsewhere(phalanx, account, tmp_path):
    (tmp_path / "phalanx.yaml").unlink()
    (stack_id,) = account.stacks
    Cluster("demo", "aws", "us-east-1", stack_id, spec=asdict(aws_spec(nodes=2))).save()
    (text,) = shown(phalanx, "-c", "demo")
    assert text.endswith(
        "leaves 12 of 32 vCPUs in us-east-1 (20 in use by others), and 16 are needed. Request more: "
        "`aws service-quotas request-service-quota-increase --region us-east-1 --service-code ec2 "
        "--quota-code L-1216C47A --desired-value 36`"
    )


def test_a_head_that_was_launched_hides_no_worker_that_was_not(phalanx, cloud):
    late = "WaitCondition timed out. Received 0 conditions when expecting 1"
    cloud.past(READY[:-1], [event(6, "Ready1", "CREATE_FAILED", "", late)], of_stack(7, "ROLLBACK_COMPLETE"))
    cloud.activities_now = {
        "head": [ScalingActivity(101.0, 102.0, "Launching a new EC2 instance: i-1", "…", "Successful")],
        "workers": [ScalingActivity(103.0, 104.0, "Launching a new EC2 instance.", "…", "Failed", VCPUS)],
    }
    assert shown(phalanx) == []
    earlier = [replace(one, began_s=one.began_s - 100) for one in cloud.activities_now["workers"]]
    cloud.activities_now["workers"] = earlier
    phalanx("why")
    assert "a machine started" in phalanx.out, "an earlier cluster of this name met the quota"


def test_an_emr_cluster_that_is_older_than_its_stack_shows_what_went_wrong(phalanx, cloud):
    text = "EMR ended the cluster: On the master instance (i-1), bootstrap action 1 returned a non-zero return code"
    cloud.past(READY[:-1], of_stack(6, "ROLLBACK_COMPLETE"))
    cloud.activities_now["head"] = [ScalingActivity(1.0, None, text, "", "Failed", text, "EMR")]
    assert phalanx("why") == 0
    assert "a bootstrap action of EMR failed" in phalanx.out


@pytest.mark.parametrize("quiet", ["offline", "not asked", "another record", "local"])
def test_why_says_nothing_of_quotas_that_it_can_t_ask(phalanx, account, tmp_path, monkeypatch, quiet):
    def facts(spec, key):
        if quiet == "offline":
            raise CloudUnreachable("AWS does not answer", "")
        assert quiet != "local", "the local cloud would be started for it"
        return replace(FACTS, quotas=tuple(quotas.of(aws_spec(), 8)), quotas_unknown="denied")

    monkeypatch.setattr(account, "facts", facts)
    if quiet == "another record":
        (tmp_path / "phalanx.yaml").unlink()
        Cluster("demo", "aws", "us-east-1", next(iter(account.stacks)), spec={"adopted": "j-1"}).save()
    if quiet == "local":
        (tmp_path / "phalanx.yaml").write_text("name: demo\nnodes: 3\nmin: 1\n")
    assert shown(phalanx) == []
