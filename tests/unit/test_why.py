"""Planted causes, as AWS and the nodes record them: each is named."""

from __future__ import annotations

from dataclasses import replace

import pytest
from planted_causes import FULL, PLANTED, ended, event, of_stack, refused, signalled

from phalanx.aws.model import ScalingActivity, StackEvent
from phalanx.cluster import causes
from phalanx.cluster.cluster_record import Cluster
from phalanx.cluster.evidence import keep
from phalanx.cluster.why import Evidence, diagnose, losses


@pytest.mark.parametrize("planted", PLANTED, ids=list(PLANTED))
def test_a_planted_cause_is_named_with_advice(planted):
    evidence, expected = PLANTED[planted]
    found = diagnose(evidence)
    assert found.cause is not None
    assert expected in found.cause.name and found.cause.advice
    assert found.findings


def test_a_failure_before_a_launch_that_worked_is_no_longer_the_cause():
    launched = ScalingActivity(3.0, 4.0, "Launching a new EC2 instance: i-1", "At …", "Successful")
    evidence = of_stack(signalled("boot step 'boot script' failed on i-1: x"), activities=(launched, refused(FULL)))
    assert [one.source for one in diagnose(evidence).findings] == ["stack"]


def test_nothing_is_wrong_with_a_cluster_that_has_all_its_nodes():
    log = {"10.0.0.5": "an AWS call failed; trying again"}
    assert diagnose(Evidence(status="CREATE_COMPLETE", logs=log)).cause is None


def test_an_unknown_reason_is_shown_and_not_guessed():
    found = diagnose(of_stack(event("The moon is in the wrong house.")))
    assert found.cause is causes.UNKNOWN and found.findings[0].text.endswith("The moon is in the wrong house.")


HEALTH = (
    "At 2026-11-27T06:35:00Z an instance was taken out of service in response to an EC2 health check indicating it has"
)
MARKED = "At 2026-11-27T06:35:00Z an instance was taken out of service in response to a user health-check."
WANTED = "At … an instance was taken out of service in response to a difference between desired and actual capacity, …"
REPLACES = "At … an instance was launched in response to an unhealthy instance needing to be replaced."


def group_did(at_s: float, cause: str, instance: str) -> ScalingActivity:
    does = "Launching a new EC2 instance" if cause == REPLACES else "Terminating EC2 instance"
    return ScalingActivity(at_s, at_s + 5, f"{does}: {instance}", cause, "Successful")


def test_a_node_that_was_lost_is_named_with_its_place_and_only_as_long_as_that_matters():
    did = [
        group_did(9500.0, MARKED, "i-3"),
        group_did(9000.0, REPLACES, "i-7"),
        group_did(8990.0, HEALTH, "i-5"),
        group_did(8000.0, WANTED, "i-4"),
        group_did(5000.0, REPLACES, "i-2"),
        group_did(4990.0, MARKED, "i-1"),
    ]
    names = {"i-7": "deeplearning-worker2", "i-2": "deeplearning-worker3"}
    assert losses(did, names, 6000.0) == (
        "i-3 was lost at 02:38 UTC: it gave no sign of life",
        "deeplearning-worker2 (i-5) was lost at 02:29 UTC: its machine was stopped, terminated or impaired; "
        "i-7 has its place",
    )
    assert losses(did, names, 9600.0) == ()
    of_emr = ScalingActivity(1.0, 9000.0, "i-9: Node is unhealthy", "", "Failed", "i-9: Node is unhealthy", "EMR")
    assert losses([of_emr], names, 6000.0) == ("i-9 was lost at 00:00 UTC: Node is unhealthy",)


def test_evidence_is_read_as_it_was_stored():
    evidence = PLANTED["no way out"][0]
    assert Evidence.from_json(evidence.to_json()) == evidence
    with pytest.raises((ValueError, TypeError, KeyError)):
        Evidence.from_json("{}")


def test_every_known_cause_is_planted():
    assert {diagnose(evidence).cause for evidence, _ in PLANTED.values()} == {*causes.CAUSES}


def test_no_two_causes_have_one_name():
    assert len({cause.name for cause in causes.CAUSES}) == len(causes.CAUSES) >= 20


# What one failure brings about in AWS's own records: each is later, or older, than its cause.
CANCELLED = event("Resource creation cancelled", "WorkersGroup")
STACK = StackEvent(
    *("e", 9.0, "demo", "arn:stack/demo", "AWS::CloudFormation::Stack", "CREATE_FAILED"),
    "The following resource(s) failed to create: [Ready1, WorkersGroup].",
)
REPLACED = ended("At … an instance was taken out of service in response to an EC2 health check")


@pytest.mark.parametrize("planted", PLANTED, ids=list(PLANTED))
def test_one_cause_is_named_at_the_prompt_amid_all_that_follows_from_it(phalanx, cloud, planted):
    evidence, expected = PLANTED[planted]
    follows = (CANCELLED, STACK) if evidence.events else (CANCELLED,)
    amid = replace(evidence, events=(*evidence.events, *follows), activities=(*evidence.activities, REPLACED))
    keep(Cluster("demo", "local", "us-east-1"), amid)
    assert phalanx("why") == 0
    first, *others = phalanx.out.splitlines()
    every = [*causes.CAUSES, causes.UNKNOWN]
    (named,) = [cause for cause in every if expected in cause.name]
    assert first == f"Cluster demo: {named.name}."
    assert others[-1] == named.advice
    assert not [cause.name for cause in every if cause is not named and cause.advice in phalanx.out]
