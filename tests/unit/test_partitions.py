"""AWS's partitions: commercial, China, GovCloud and the European Sovereign Cloud have their own domains."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from botocore.loaders import create_loader
from botocore.regions import EndpointResolver
from plans import PLANS, default_document

from localcloud.api import partitions
from phalanx.connection import connect
from phalanx.data import table
from phalanx.errors import LocalCloudError
from phalanx.images.base import base
from phalanx.images.image_stack import Order, request
from phalanx.jobs.environments import recipe
from phalanx.local import endpoint
from phalanx.node import aws_client, mount
from phalanx.node.agent import Agent
from phalanx.node.aws_client import Aws
from phalanx.node.sigv4 import Credentials
from phalanx.plan.vpc_endpoints import ENDPOINTS
from phalanx.runner.files.job_record import JobRecord
from phalanx.runner.verbs import checkpoints
from phalanx.spec.spec import ClusterSpec
from phalanx.template.document import build
from phalanx.template.policy import of_service_role, policy

RESOLVER: Any = EndpointResolver(create_loader().load_data("endpoints"))
SERVICES = ("sqs", "dynamodb", "autoscaling", "ec2", "logs", "sts", "cloudformation")


def regions() -> Iterator[tuple[str, str]]:
    """Yield the regions that a spec may name, with the domains that botocore knows."""
    for region in table("regions")["regions"]:
        yield region, RESOLVER.construct_endpoint("ec2", region)["dnsSuffix"]


def test_all_four_partitions_are_tried():
    assert {domain for _, domain in regions()} == {"amazonaws.com", "amazonaws.com.cn", "amazonaws.eu"}
    assert "us-gov-west-1" in dict(regions())


@pytest.mark.parametrize("region", [*table("regions")["regions"]])
def test_the_local_cloud_refuses_regions_of_other_partitions(region, monkeypatch):
    monkeypatch.setattr(endpoint, "account", lambda: {"profile": "own"})
    spec = ClusterSpec(name="demo", nodes=1, region=region)
    if RESOLVER.get_partition_for_region(region) == "aws":
        assert connect("local", region).site.facts(spec, "").kept_file_system == ""
        return
    with pytest.raises(LocalCloudError, match=f"{region} is in another partition"):
        connect("local", region).site.facts(spec, "")


@pytest.mark.parametrize(("region", "domain"), [*regions()])
def test_the_agent_calls_the_endpoints_that_boto3_calls(region, domain, monkeypatch):
    asked: list[str] = []
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    monkeypatch.setattr(aws_client.wire, "fetch", lambda request, _: asked.append(request.url) or b"{}")
    aws = Aws(region, domain, lambda _: Credentials("A", "s"))
    for service in SERVICES:
        aws.json(service, "X.Y", {})
    hosts = [RESOLVER.construct_endpoint(service, region)["hostname"] for service in SERVICES]
    assert asked == [f"https://{host}/" for host in hosts]


@pytest.mark.parametrize(("region", "domain"), [*regions()])
def test_nodes_mount_efs_by_a_name_of_the_region(monkeypatch, region, domain):
    settings = SimpleNamespace(region=region, domain=domain, file_system="fs-1", tls="")
    monkeypatch.setattr(mount, "_HELPER", "/not/on/this/image")
    source = Agent.shared_from(cast("Agent", SimpleNamespace(settings=settings)), "")
    assert source.place == f"fs-1.efs.{region}.{domain}:/"


@pytest.mark.parametrize(("region", "domain"), [*regions()])
def test_the_local_cloud_has_the_domain_of_the_region(region, domain):
    assert partitions.domain(region) == domain


def test_no_domain_is_written_into_the_template():
    """But for service principals, and the reversed names of gateway endpoints, which are the same everywhere."""
    document = default_document()
    for name in ENDPOINTS:
        del document["Resources"][name]
    texts = [text for text in _texts(document["Resources"]) if "amazonaws" in text]
    assert set(texts) == {
        "lambda.amazonaws.com",
        "sns.amazonaws.com",
        "ec2.amazonaws.com",
        "ec2.amazonaws.com.cn",
    }
    assert (
        "#domain=${AWS::URLSuffix}"
        in document["Resources"]["HeadLaunchTemplate"]["Properties"]["LaunchTemplateData"]["UserData"]["Fn::Base64"][
            "Fn::Sub"
        ][0].splitlines()
    )


@pytest.mark.parametrize("name", [*PLANS])
def test_no_arn_of_the_template_names_a_partition(name):
    """But for what the user has written there: policies, keys and the role of an EMR cluster."""
    document = build(PLANS[name]).to_dict()
    found = {text for text in _texts(document["Resources"]) if "arn:aws" in text}
    assert {one for one in found if "${AWS::Partition}" not in one} <= {*(PLANS[name].spec.policies or ())}


def test_no_arn_of_an_image_s_stack_names_a_partition():
    order = Order(recipe("torch"), base("ubuntu-24.04"), "2026.1.1", "m5.large")
    assert not [text for text in _texts(json.loads(request(order)[0])) if "arn:aws" in text]


def test_no_right_that_phalanx_prints_names_a_partition():
    for document in (build(plan).to_dict() for plan in PLANS.values()):
        printed = [policy(document, "demo"), of_service_role(document, "demo")["PolicyDocument"]]
        named = {document.get("Parameters", {}).get(one, {}).get("Default") for one in ("Boundary", "KmsKey")}
        given = {arn for one in document["Resources"].values() for arn in _texts(one.get("Properties", {}))}
        found = {text for text in _texts(printed) if text.startswith("arn:aws")}
        assert found <= named | given


def test_ec2_is_trusted_by_the_name_that_the_partition_knows():
    document = default_document()
    assert document["Conditions"]["InChina"] == {"Fn::Equals": [{"Ref": "AWS::Partition"}, "aws-cn"]}
    for role in ("HeadRole", "WorkerRole"):
        (statement,) = document["Resources"][role]["Properties"]["AssumeRolePolicyDocument"]["Statement"]
        assert statement["Principal"]["Service"] == {"Fn::If": ["InChina", "ec2.amazonaws.com.cn", "ec2.amazonaws.com"]}


def _texts(part: object) -> Iterator[str]:
    if isinstance(part, str):
        yield part
    elif isinstance(part, (list, dict)):
        for item in part.values() if isinstance(part, dict) else part:
            yield from _texts(item)


@pytest.mark.parametrize(("region", "domain"), list(regions()))
def test_checkpoints_are_kept_in_the_regions_own_s3(region, domain, tmp_path, monkeypatch):
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    partition = RESOLVER.get_partition_for_region(region)
    stack = f"arn:{partition}:cloudformation:{region}:123456789012:stack/demo/1"
    job = checkpoints.claim(
        str(tmp_path / ".phalanx/jobs/J1"), JobRecord(("x",), checkpoint="s3://bucket/runs", stack=stack), []
    )
    assert job.mirror is not None and job.mirror.endpoint == f"https://s3.{region}.{domain}"
