"""A list of types: each is looked up, judged and shown before anything is created."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from clusters import FACTS, aws_spec, spec
from error_codes import each, raises_code
from fake_cloud import FakeAws

from phalanx.cluster import create
from phalanx.errors import CloudError, Mistakes, SpecError
from phalanx.plan import each_type
from phalanx.plan.machine_images import Image
from phalanx.plan.plan import Facts, make_plan, offline_facts
from phalanx.spec.spec import ClusterSpec

AMI = "ami-0123456789abcdef0"
ARM = replace(FACTS, cloud="aws", architecture="arm64")
HERE = replace(FACTS, cloud="aws")


def looked_up(wanted: ClusterSpec, **of_types: Facts) -> Facts:
    return each_type.look_up(wanted, lambda one: of_types[one.type.replace(".", "_")], make_plan)


def test_a_plan_without_the_cloud_refuses_every_type_that_can_not_be(phalanx):
    text = f"name: demo\ncloud: aws\nnodes: 2\nssh_from: 203.0.113.7/32\nimage: {AMI}\n"
    Path("phalanx.yaml").write_text(text + "type: [c5.large, c7g.large, c5.nonsense, c5.mumble]\n")
    assert phalanx("plan", "--offline") == 2
    phalanx.refused("unknown-sizes", "phalanx.yaml:6: type: ", "c5.nonsense", "c5.mumble")
    phalanx.refused("other-architecture", f"phalanx.yaml:5: image: {AMI}", "c5.large is x86_64, c7g.large is arm64")
    Path("phalanx.yaml").write_text(text + "type: [c5.large, c5.xlarge]\n")
    assert phalanx("plan", "--offline") == 0


def test_an_alias_has_an_image_for_each_processor():
    wanted = aws_spec(type=["c5.large", "c7g.large"], image="ubuntu-24.04")
    first, second = each_type.single(wanted)
    assert make_plan(wanted, looked_up(wanted, c5_large=HERE, c7g_large=ARM)).alternatives == (make_plan(second, ARM),)
    assert first.types == ("c5.large",)


def test_every_type_is_judged_by_the_image_as_ec2_describes_it():
    image = Image(AMI, "mine", "x86_64", "/dev/sda1", 8)
    wanted = aws_spec(type=["c5.large", "c7g.large", "c6g.large"], image=AMI)
    arm = replace(ARM, image=image)
    facts = looked_up(wanted, c5_large=replace(HERE, image=image), c7g_large=arm, c6g_large=arm)
    with pytest.raises(SpecError) as refused:
        make_plan(wanted, facts)
    assert [code for code, _ in each(refused.value)] == ["other-architecture"] * 2
    for (_, message), kind in zip(each(refused.value), ("c7g.large", "c6g.large"), strict=True):
        assert message.startswith(f"image: {AMI} is for x86_64") and kind in message


def test_every_type_is_judged_by_drivers_and_zones():
    wanted = aws_spec(type=["c5.large", "g5.xlarge"], image="ubuntu-24.04", zones=["us-east-1a"])
    gpus = replace(HERE, gpus=1, zones=("us-east-1b",))
    with pytest.raises(SpecError) as refused:
        make_plan(wanted, looked_up(wanted, c5_large=HERE, g5_xlarge=gpus))
    assert [code for code, _ in each(refused.value)] == ["type-not-offered", "no-gpu-driver"]
    assert all("g5.xlarge" in message for _, message in each(refused.value))


def test_what_is_wrong_with_all_types_is_reported_once_and_of_one_with_its_name():
    wanted = aws_spec(type=["c5.large", "c5.4xlarge"], disk={"size_gib": 8}, min=4)
    image = Image(AMI, "mine", "x86_64", "/dev/sda1", 30)
    large = offline_facts(aws_spec(type="c5.4xlarge", min=4))
    assert large is not None
    quotas = tuple(replace(one, limit=32) for one in large.quotas)
    facts = {"c5_large": replace(HERE, image=image), "c5_4xlarge": replace(large, image=image, quotas=quotas)}
    with pytest.raises(SpecError) as refused:
        make_plan(wanted, looked_up(wanted, **facts))
    (first, disk), (second, quota) = each(refused.value)
    assert (first, second) == ("disk-size", "quota")
    assert disk.startswith("disk: size_gib is 8")
    assert quota.startswith("nodes: at least 64 vCPUs") and quota.endswith(", for c5.4xlarge")


def test_a_type_that_is_missing_is_named_with_what_is_wrong_with_the_others():
    def look(one: ClusterSpec) -> Facts:
        if one.type == "c5.lrge":
            raise SpecError("type: no c5.lrge", code="no-instance-type")
        return replace(HERE, zones=())

    with pytest.raises(SpecError) as refused:
        each_type.look_up(aws_spec(type=["c5.lrge", "c5.xlarge"]), look, make_plan)
    assert [code for code, _ in each(refused.value)] == ["no-instance-type", "type-not-offered"]
    assert "c5.xlarge" in each(refused.value)[1][1]


class Choosy(FakeAws):
    """A cloud that no zone of which offers the second type."""

    def facts(self, spec, ssh_public_key):
        return each_type.look_up(
            spec, lambda one: FACTS if one.type == "c5.large" else replace(FACTS, zones=()), make_plan
        )


def test_up_judges_every_type_before_it_creates_anything():
    with raises_code("type-not-offered", "us-east-1", "c5.xlarge"):
        next(create.plans_for(Choosy(), spec(type=["c5.large", "c5.xlarge"])))


def test_a_mistake_is_named_once():
    mistakes = Mistakes()
    for _ in range(2):
        mistakes.add(SpecError("nodes: too few", "Write more."))
    with pytest.raises(SpecError, match=r"^nodes: too few\nWrite more\.$"):
        mistakes.report()


def test_a_call_is_made_once_for_all_types():
    from phalanx.aws.auto_scaling import AutoScaling
    from phalanx.aws.lookups import AskedOnce

    class Api:
        name, region, machines = "aws", "us-east-1", AutoScaling(None)

        def __init__(self) -> None:
            self.calls: list[str] = []

        def call(self, service, operation, **arguments):
            self.calls.append(operation)
            if operation == "refused":
                raise CloudError("no")
            return {"given": arguments}

        def pages(self, service, operation, key, **arguments):
            self.calls.append(operation)
            yield {"number": 1}
            if operation == "refused":
                raise CloudError("no")
            yield {"number": 2}

        def exists(self, service, operation, **arguments):
            self.calls.append(operation)

    api = Api()
    once = AskedOnce(api)
    assert (once.name, once.region) == ("aws", "us-east-1")
    assert once.call("ec2", "a", Names=["x"]) == once.call("ec2", "a", Names=["x"]) == {"given": {"Names": ["x"]}}
    assert once.call("ec2", "a", Names=["y"]) == {"given": {"Names": ["y"]}}
    assert next(iter(once.pages("ec2", "b", "Key"))) == {"number": 1}
    assert [one["number"] for one in once.pages("ec2", "b", "Key")] == [1, 2]
    assert once.exists("ec2", "c") is once.exists("ec2", "c") is None
    assert api.calls == ["a", "a", "b", "c"]
    for _ in range(2):
        with pytest.raises(CloudError):
            list(once.pages("ec2", "refused", "Key"))
        with pytest.raises(CloudError):
            once.call("ec2", "refused")
