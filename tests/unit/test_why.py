"""Planted causes, as AWS and the nodes record them: each is named."""

from __future__ import annotations

from dataclasses import replace

import pytest
from planted_causes import FULL, PLANTED, ended, event, of_stack, refused, signalled

from phalanx.aws.model import ScalingActivity, StackEvent
from phalanx.cluster import causes
from phalanx.cluster.cluster_record import Cluster
from phalanx.cluster.evidence import keep
from phalanx.cluster.why import Evidence, diagnose


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
