"""The stack in which Image Builder makes an image: what fits into a request, and what is created."""

from __future__ import annotations

import json
import re

import pytest

from phalanx.images.base import base
from phalanx.images.component import components
from phalanx.images.image_stack import Order, request
from phalanx.jobs.environments import recipe, recipe_names

VERSION = "2026.1122.905"


def order(name: str, alias: str = "", architecture: str = "x86_64") -> Order:
    one = recipe(name)
    return Order(one, base(alias or one.image["base"]), VERSION, "m5.large", architecture)


def resources(wanted: Order) -> dict:
    return json.loads(request(wanted)[0])["Resources"]


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_fits_into_a_request(name):
    document, parameters = request(order(name))
    assert len(document.encode()) <= 51_200
    assert len(parameters) <= 200
    assert max(map(len, parameters.values())) <= 4096


def test_the_parameters_complete_the_components():
    wanted = order("tensorflow")
    document, parameters = request(wanted)
    for made in components(wanted.recipe, wanted.base, VERSION):
        title = made.name.title().replace("-", "")
        data = json.loads(document)["Resources"][title]["Properties"]["Data"]
        if isinstance(data, dict):
            data = re.sub(r"\$\{(\w+)\}", lambda part: parameters[part[1]], data["Fn::Sub"])
        assert data == made.document


def test_the_ami_has_the_recipe_and_the_version_in_its_tags():
    found = resources(order("torch"))["Distribution"]["Properties"]["Distributions"][0]["AmiDistributionConfiguration"]
    assert found["AmiTags"] == {
        "phalanx:recipe": "torch",
        "phalanx:version": VERSION,
        "phalanx:base": "ubuntu-24.04",
        "phalanx:digest": recipe("torch").environment.digest,
    }
    assert "{{ imagebuilder:buildDate }}" in found["Name"]


def test_deleting_the_stack_deletes_the_ami():
    found = resources(order("torch"))
    assert found["Image"]["Properties"]["DeletionSettings"] == {
        "ExecutionRole": {"Fn::GetAtt": ["DeletionRole", "Arn"]}
    }


@pytest.mark.parametrize(
    ("architecture", "parent"),
    [
        ("x86_64", "ssm:/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id"),
        ("arm64", "ssm:/aws/service/canonical/ubuntu/server/24.04/stable/current/arm64/hvm/ebs-gp3/ami-id"),
    ],
)
def test_the_parent_is_the_newest_image_for_the_processor(architecture, parent):
    assert resources(order("torch", architecture=architecture))["Recipe"]["Properties"]["ParentImage"] == parent


def test_a_deep_learning_ami_keeps_the_size_of_its_disk():
    assert "BlockDeviceMappings" not in resources(order("cupy"))["Recipe"]["Properties"]
    (disk,) = resources(order("torch"))["Recipe"]["Properties"]["BlockDeviceMappings"]
    assert (disk["DeviceName"], disk["Ebs"]["VolumeSize"]) == ("/dev/sda1", 30)


def test_nothing_may_connect_to_the_machines():
    assert "SecurityGroupIngress" not in resources(order("torch"))["SecurityGroup"]["Properties"]
