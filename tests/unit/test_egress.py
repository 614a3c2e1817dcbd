"""`plan --egress`: every host and port that nodes contact."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from clusters import FACTS, aws_spec, plan

import phalanx.node
from localcloud.nodes.machine import API_ADDRESS, API_PORT
from phalanx.aws import sessions
from phalanx.plan.plan import Plan, make_plan
from phalanx.template import egress

_CALL = re.compile(r'\.(?:json|query)\(\s*"(\w+)"')


def on_aws(**fields) -> Plan:
    zone = f"{fields.get('region', 'us-east-1')}a"
    return make_plan(aws_spec(**fields), replace(FACTS, cloud="aws", zones=(zone,)))


def with_emr() -> Plan:
    fields = {"cloud": "emr", "type": "m5.xlarge", "emr": {"logs": "s3://bucket"}}
    return make_plan(aws_spec(**fields), replace(FACTS, cloud="emr"))


def found(plan: Plan) -> list[egress.Egress]:
    return egress.of(plan, sessions.domain_of(plan.spec.region))


def hosts(plan: Plan) -> dict[str, int]:
    return {one.host: one.port for one in found(plan)}


def test_the_services_are_those_that_the_agent_calls():
    sources = "".join(path.read_text() for path in Path(phalanx.node.__path__[0]).glob("*.py"))
    called = {*egress.services(on_aws(metrics="yes")), *egress.services(with_emr())}
    # EMR itself fetches the agent from there.
    assert called - {"s3"} == set(_CALL.findall(sources))


@pytest.mark.parametrize(
    ("region", "expected"),
    [
        ("eu-west-3", "sqs.eu-west-3.amazonaws.com"),
        ("cn-north-1", "sqs.cn-north-1.amazonaws.com.cn"),
        ("us-east-1", "cloudformation-waitcondition-us-east-1.s3.amazonaws.com"),
        ("eu-west-3", "cloudformation-waitcondition-eu-west-3.s3.eu-west-3.amazonaws.com"),
        ("eu-west-3", "pypi.org"),
    ],
)
def test_endpoints_are_the_region_s(region, expected):
    assert hosts(on_aws(region=region))[expected] == 443


@pytest.mark.parametrize(
    ("image", "architecture", "expected"),
    [
        ("ubuntu-24.04", "x86_64", ("us-east-1.ec2.archive.ubuntu.com", 80)),
        ("ubuntu-22.04", "arm64", ("us-east-1.ec2.ports.ubuntu.com", 80)),
        (
            "amazon-linux-2023",
            "x86_64",
            ("al2023-repos-us-east-1-de612dc2.s3.dualstack.us-east-1.amazonaws.com", 443),
        ),
        ("/my/image", "x86_64", ("?", 443)),
    ],
)
def test_package_mirrors_are_those_of_the_image(image, architecture, expected):
    facts = replace(FACTS, cloud="aws", architecture=architecture)
    assert expected in hosts(make_plan(aws_spec(image=image), facts)).items()


def test_data_of_jobs_is_in_s3():
    assert not [host for host in hosts(on_aws()) if host.startswith("*.s3")]
    assert "*.s3.us-east-1.amazonaws.com" in hosts(on_aws(data={"imagenet": "s3://my-bucket/imagenet"}))


def test_the_local_cloud_has_one_endpoint_and_no_mirrors():
    at_boot = [one for one in found(plan()) if one.needed_for == egress.EVERY_BOOT]
    assert [(one.host, one.port) for one in at_boot] == [("10.0.16.0/20", 2049), (API_ADDRESS, API_PORT)]
    assert not [one for one in found(plan()) if one.needed_for == egress.PACKAGES]
