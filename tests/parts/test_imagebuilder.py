"""Image Builder in the local cloud: what becomes of an image whose components run on a machine that is played here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fleet_fakes import until
from image_builds import PlayedShell, play
from stack_fakes import Stacks, stacks

from localcloud.api import moto_setup
from localcloud.images.imagebuilder import documents
from phalanx.images.base import base
from phalanx.images.image_stack import Order, request
from phalanx.jobs.environments import recipe

VERSION = "2026.1122.905"


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stacks]:
    with stacks(tmp_path_factory.mktemp("state")) as running:
        yield running


@pytest.fixture(autouse=True)
def played(cloud: Stacks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[PlayedShell]:
    return play(cloud, tmp_path, monkeypatch)


def order(version: str = VERSION) -> tuple[Order, dict[str, Any]]:
    """Return an image to make, and what CreateStack takes for it."""
    wanted = Order(recipe("torch"), base("ubuntu-24.04-full"), version, "m5.large")
    document, parameters = request(wanted)
    values = [{"ParameterKey": key, "ParameterValue": value} for key, value in parameters.items()]
    tags = [{"Key": key, "Value": value} for key, value in wanted.tags.items()]
    more = {"Parameters": values, "Tags": tags, "Capabilities": ["CAPABILITY_IAM"]}
    return wanted, {"StackName": wanted.stack, "TemplateBody": document, **more}


def begun(cloud: Stacks, version: str = VERSION) -> str:
    return cloud.cloudformation.create_stack(**order(version)[1])["StackId"]


def amis(cloud: Stacks) -> list[dict[str, Any]]:
    ours = [{"Name": "tag-key", "Values": ["phalanx:recipe"]}]
    return cloud.client("ec2").describe_images(Owners=["self"], Filters=ours)["Images"]


def instances(cloud: Stacks) -> list[str]:
    """Return the states of this cloud's instances: moto may have some of other modules."""
    pages = cloud.client("ec2").get_paginator("describe_instances").paginate()
    machines = [one for page in pages for entry in page["Reservations"] for one in entry["Instances"]]
    return [one["State"]["Name"] for one in machines if one["InstanceId"] in cloud.runner.booted]


def test_an_image_is_made_tested_listed_and_deleted_with_its_stack(cloud, played, tmp_path):
    stack = begun(cloud)
    assert cloud.settled(stack) == "CREATE_COMPLETE", cloud.history(stack)
    assert ["source" in played.ran[0], "install_recipe" in played.ran[1], "write_program" in played.ran[-1]] == [
        True
    ] * 3
    (ami,) = amis(cloud)
    assert ami["ImageId"] == cloud.outputs(stack)["ImageId"]
    assert {"Key": "phalanx:recipe", "Value": "torch"} in ami["Tags"]
    (kept,) = tmp_path.glob("phalanx-image-torch-*/image.json")
    assert json.loads(kept.read_text())["ami"] == ami["ImageId"]
    group = cloud.outputs(stack)["LogGroup"]
    pages = cloud.client("logs").get_paginator("filter_log_events").paginate(logGroupName=group)
    log = [event for page in pages for event in page["events"]]
    assert "== played" in [event["message"] for event in log]
    assert set(instances(cloud)) <= {"terminated"}
    assert cloud.deleted(stack) == "DELETE_COMPLETE"
    assert (amis(cloud), list(tmp_path.iterdir())) == ([], [])


def test_a_later_local_cloud_has_the_image_too(cloud, tmp_path):
    begun_stack = begun(cloud, "2026.1122.906")
    assert cloud.settled(begun_stack) == "CREATE_COMPLETE", cloud.history(begun_stack)
    (kept,) = moto_setup.store.images(tmp_path)
    assert moto_setup.FULL_IMAGES[kept.name] == kept.ami
    assert kept.tags["phalanx:version"] == "2026.1122.906"
    assert cloud.deleted(begun_stack) == "DELETE_COMPLETE"


def test_a_component_that_fails_fails_the_stack_with_its_step_and_leaves_nothing(cloud, played, tmp_path):
    played.fails = "install_recipe"
    stack = begun(cloud, "2026.1122.907")
    assert cloud.settled(stack) == "ROLLBACK_COMPLETE"
    assert "phase build, step run failed: exit code 7" in cloud.reason(stack, "Image", "CREATE_FAILED")
    assert (amis(cloud), list(tmp_path.iterdir()), set(instances(cloud)) <= {"terminated"}) == ([], [], True)


@pytest.mark.parametrize(
    ("version", "played_as", "reason"),
    [
        (
            "2026.1122.911",
            {"copied": "the disk of /images is full: 3 MiB are free"},
            "the disk of /images is full: 3 MiB are free",
        ),
        (
            "2026.1122.913",
            {"fails": "install_recipe", "prints": "No space left on device"},
            "the machine's disk is full",
        ),
    ],
)
def test_a_full_disk_fails_the_stack_with_that_reason_and_leaves_nothing(
    cloud, played, tmp_path, version, played_as, reason
):
    for name, value in played_as.items():
        setattr(played, name, value)
    stack = begun(cloud, version)
    assert cloud.settled(stack) == "ROLLBACK_COMPLETE"
    assert reason in cloud.reason(stack, "Image", "CREATE_FAILED")
    assert (amis(cloud), list(tmp_path.iterdir()), set(instances(cloud)) <= {"terminated"}) == ([], [], True)


def test_an_image_is_there_in_each_region_and_goes_from_each(cloud, tmp_path):
    before, after = cloud.client("ec2"), cloud.client_in("eu-west-1", "ec2")
    stack = begun(cloud, "2026.1122.912")
    assert cloud.settled(stack) == "CREATE_COMPLETE", cloud.history(stack)
    ours = [{"Name": "tag-key", "Values": ["phalanx:recipe"]}]
    found = [client.describe_images(Filters=ours)["Images"][0]["ImageId"] for client in (before, after)]
    assert found[0] == found[1]
    after.deregister_image(ImageId=found[0])
    assert amis(cloud) == []
    assert list(tmp_path.iterdir()) == []
    assert cloud.deleted(stack) == "DELETE_COMPLETE"


def test_a_test_that_fails_fails_the_stack_and_the_ami_is_deleted(cloud, played, tmp_path):
    played.fails = "write_program"
    stack = begun(cloud, "2026.1122.908")
    assert cloud.settled(stack) == "ROLLBACK_COMPLETE"
    assert "phase test" in cloud.reason(stack, "Image", "CREATE_FAILED")
    assert (amis(cloud), list(tmp_path.iterdir())) == ([], [])


def test_a_build_that_is_deleted_ends_with_its_machine(cloud, played, tmp_path):
    played.gate.clear()
    stack = begun(cloud, "2026.1122.909")
    until(lambda: cloud.status(stack, "Image") == "CREATE_IN_PROGRESS" and "running" in instances(cloud))
    cloud.cloudformation.delete_stack(StackName=stack)
    until(lambda: "running" not in instances(cloud))
    played.gate.set()
    assert cloud.settled(stack) == "DELETE_COMPLETE"
    assert (amis(cloud), list(tmp_path.iterdir())) == ([], [])


def test_a_parent_without_an_operating_system_is_refused(cloud):
    wanted, arguments = order("2026.1122.910")
    document = arguments["TemplateBody"].replace(wanted.parent, moto_setup.IMAGES["x86_64"])
    stack = cloud.cloudformation.create_stack(**{**arguments, "TemplateBody": document})["StackId"]
    assert cloud.settled(stack) == "ROLLBACK_COMPLETE"
    assert "has no full operating system" in cloud.reason(stack, "Image", "CREATE_FAILED")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ("phases: [", "not valid YAML"),
        ("phases: []", "no schemaVersion 1.0"),
        ("schemaVersion: 1.0", "no phase with steps"),
        ("schemaVersion: 1.0\nphases: [{name: deploy, steps: []}]", "unknown phase: deploy"),
        ("schemaVersion: 1.0\nphases: [{name: build, steps: [{name: a, action: Reboot}]}]", "does not support Reboot"),
    ],
)
def test_a_document_that_image_builder_refuses_is_refused(data, why):
    with pytest.raises(documents.InvalidDocument, match=why):
        documents.steps(data)
