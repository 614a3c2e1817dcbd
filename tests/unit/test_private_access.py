"""`network: {access: private}`: no public address, no way to the internet, endpoints for what nodes call."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest
from clusters import FACTS, GPU_FACTS, aws_spec, plan, spec
from error_codes import raises_code
from plans import resources

from localcloud.iam.policy import Ask, Decision, Statement, decide, statements_of
from phalanx.cli import starting
from phalanx.cluster.cluster_record import Cluster
from phalanx.errors import ClusterError, SpecError
from phalanx.jobs.environments import Environment
from phalanx.jobs.job_model import JobSpec
from phalanx.plan import subnets, vpc_endpoints
from phalanx.plan.capacity import Reservation
from phalanx.plan.plan import HeadFacts, Plan, make_plan
from phalanx.plan.plan_text import as_dict, explain, warnings
from phalanx.spec.spec_load import load
from phalanx.spec.spec_schema import json_schema
from phalanx.ssh.remote import NotListening, classify
from phalanx.template import egress, fleet, synthesize
from phalanx.template.policy import policy

PRIVATE = {"access": "private"}
IMAGE = "dlami-base"
PUBLIC_TYPES = ("InternetGateway", "VPCGatewayAttachment", "NatGateway", "EIP", "Route")


def private(facts: Any = FACTS, **fields: Any) -> Plan:
    chosen = aws_spec(**{"network": PRIVATE, "image": IMAGE, "ssh_from": "", **fields})
    return make_plan(chosen, replace(facts, cloud="aws"))


def document(made: Plan) -> dict[str, Any]:
    return json.loads(synthesize(made))


def test_nothing_of_it_is_public():
    found = document(private())
    kinds = {one["Type"] for one in found["Resources"].values()}
    assert not kinds & {f"AWS::EC2::{kind}" for kind in PUBLIC_TYPES}
    assert "SshLocation" not in found["Parameters"]
    assert not {"HeadAddress", "Login", "ClusterMasterPublicDNS"} & found["Outputs"].keys()
    assert "MapPublicIpOnLaunch" not in resources(found, "AWS::EC2::Subnet")["PrivateSubnet"]
    groups = resources(found, "AWS::AutoScaling::AutoScalingGroup")
    assert {str(group["VPCZoneIdentifier"]) for group in groups.values()} == {"[{'Ref': 'PrivateSubnet'}]"}
    data = [one["LaunchTemplateData"] for one in resources(found, "AWS::EC2::LaunchTemplate").values()]
    assert {str(one["SecurityGroupIds"]) for one in data} == {"[{'Ref': 'NodeSecurityGroup'}]"}
    assert "22" not in str(resources(found, "AWS::EC2::SecurityGroup"))


OPTIONS: dict[str, Any] = {
    "capacity": "cr-0123abcd",
    "metrics": "yes",
    "data": {"in": "s3://my-bucket/in"},
    "file_system": "fs-0123456789abcdef0",
    "head": {"type": "m5.large"},
    "mail": "me@example.com",
    "lease_s": 8 * 3600,
}


@pytest.mark.parametrize("chosen", [(), *combinations(OPTIONS, 1), *combinations(OPTIONS, 2), tuple(OPTIONS)])
def test_its_endpoints_are_those_that_plan_egress_lists(chosen: tuple[str, ...]):
    reserved = Reservation("cr-0123abcd", False, "active", "c5.large", "us-east-1a", 4)
    facts = replace(FACTS, reservation=reserved if "capacity" in chosen else None)
    facts = replace(facts, head=HeadFacts(2, 8, "x86_64") if "head" in chosen else None)
    made = private(facts, type="c5.large", **{name: OPTIONS[name] for name in chosen})
    endpoints = resources(document(made), "AWS::EC2::VPCEndpoint").values()
    served = {one["ServiceName"]["Fn::Sub"].removeprefix("com.amazonaws.${AWS::Region}.") for one in endpoints}
    assert served == {*egress.services(made), "s3"}
    interfaces = {name for name in served if name not in vpc_endpoints.GATEWAYS}
    assert interfaces == set(vpc_endpoints.interfaces(made.spec))


def test_an_interface_endpoint_takes_over_its_service_for_the_nodes_alone():
    found = document(private())
    made = resources(found, "AWS::EC2::VPCEndpoint")["SqsEndpoint"]
    assert (made["VpcEndpointType"], made["PrivateDnsEnabled"]) == ("Interface", True)
    (rule,) = resources(found, "AWS::EC2::SecurityGroup")["EndpointSecurityGroup"]["SecurityGroupIngress"]
    assert (rule["FromPort"], rule["ToPort"], rule["SourceSecurityGroupId"]) == (443, 443, {"Ref": "NodeSecurityGroup"})
    waits = found["Resources"]["WorkersGroup"]["DependsOn"]
    assert {"SqsEndpoint", "S3Endpoint", "SsmmessagesEndpoint", "PrivateSubnetRoutes"} <= set(waits)


def endpoint_policies(made: Plan) -> dict[str, list[Statement]]:
    """Return the statements of the endpoints' policies, by service, in account 123456789012 and us-east-1."""
    found = resources(document(made), "AWS::EC2::VPCEndpoint").values()
    text = json.dumps({one["ServiceName"]["Fn::Sub"].rpartition(".")[2]: one.get("PolicyDocument") for one in found})
    text = text.replace('{"Ref": "AWS::AccountId"}', '"123456789012"')
    text = re.sub(r'\{"Fn::Sub": ("[^"]*")\}', r"\1", text)
    for name, value in (("Partition", "aws"), ("Region", "us-east-1")):
        text = text.replace(f"${{AWS::{name}}}", value)
    assert "AWS::" not in text
    return {service: statements_of(made) for service, made in json.loads(text).items() if made}


@pytest.mark.parametrize(
    ("action", "arn", "account", "verdict"),
    [
        ("s3:PutObject", "my-bucket/a", "123456789012", True),
        ("s3:PutObject", "their-bucket/a", "999999999999", False),
        ("s3:GetObject", "their-bucket/a", "", False),
        ("s3:PutObject", "cloudformation-waitcondition-us-east-1/a", "999999999999", True),
        ("s3:GetObject", "cloudformation-waitcondition-us-east-1/a", "999999999999", False),
        ("s3:GetObject", "al2023-repos-us-east-1-de612dc2/core/mirrors/x", "", True),
        ("s3:PutObject", "al2023-repos-us-east-1-de612dc2/x", "", False),
    ],
)
def test_s3_is_open_to_the_account_the_signal_and_amazon_linux_s_packages(
    action: str, arn: str, account: str, verdict: bool
):
    keys = {"aws:principalaccount": [account]} if account else {}
    found = decide(endpoint_policies(private())["s3"], Ask(action, f"arn:aws:s3:::{arn}", keys, principals=(account,)))
    assert (found is Decision.ALLOWED) == verdict


def test_all_others_but_the_logins_are_open_to_the_account_alone():
    found = endpoint_policies(private(metrics="yes"))
    interfaces = set(vpc_endpoints.interfaces(private(metrics="yes").spec))
    assert found.keys() == {*interfaces, "s3", "dynamodb"} - {"ssmmessages"}
    for service in found.keys() - {"s3"}:
        for account, verdict in (("123456789012", True), ("999999999999", False)):
            asked = Ask(f"{service}:Do", "*", {"aws:principalaccount": [account]}, principals=(account,))
            assert (decide(found[service], asked) is Decision.ALLOWED) == verdict
    assert not endpoint_policies(plan()), "with a way to the internet, nobody would need the endpoint"


def test_the_head_alone_has_rights_for_its_login_and_none_for_an_address():
    found = resources(document(private()), "AWS::IAM::Role")
    actions = {name: str(role.get("Policies", "")) for name, role in found.items()}
    assert "AssociateAddress" not in str(actions)
    assert [name for name, granted in actions.items() if "ssm" in granted] == ["HeadRole"]
    (update,) = (one for one in _statements(found["HeadRole"]) if one["Action"] == ["ssm:UpdateInstanceInformation"])
    assert update["Resource"]["Fn::Sub"].endswith(":instance/*")
    assert "ssm" not in str(resources(document(plan()), "AWS::IAM::Role"))


def _statements(role: dict[str, Any]) -> list[dict[str, Any]]:
    return role["Policies"][0]["PolicyDocument"]["Statement"]


def test_agents_know_that_there_is_no_address_and_no_mirror():
    config = fleet.config("head", private())
    assert (config["address"], config["offline"]) == ("", "1")
    assert "offline" not in fleet.config("head", plan())


def test_plan_shows_the_endpoints_and_what_they_cost():
    made = private(nodes=2, type="c5.large")
    shown = "\n".join(explain(made))
    assert "a private subnet for all nodes, no way to the internet, endpoints for S3, DynamoDB, autoscaling" in shown
    assert "9 endpoints at $0.01 each" in shown
    assert "through AWS Systems Manager" in shown
    assert as_dict(made)["cost_usd_per_hour"] == round(2 * 0.085 + 9 * 0.01, 4)
    assert not [quota for quota in as_dict(made)["warnings"] if "Elastic IP" in quota]


def test_plan_says_what_can_t_be_had_without_the_internet():
    assert any("no node reaches the internet" in one for one in warnings(private()))
    unknown = warnings(private(image="ami-0123456789abcdef0"))
    assert "ami-0123456789abcdef0 must have AWS's SSM Agent, an NFS client and all else that jobs need" in unknown
    assert not any("internet:" in one for one in warnings(plan()))


def test_egress_lists_nothing_outside_of_aws():
    hosts = [one.host for one in egress.of(private(), "amazonaws.com")]
    assert "ssmmessages.us-east-1.amazonaws.com" in hosts
    assert not [host for host in hosts if not host.endswith(("amazonaws.com", "/16"))]
    with_packages = egress.of(private(image="amazon-linux-2023"), "amazonaws.com")
    assert [one.host.partition("-")[0] for one in with_packages if one.needed_for == egress.PACKAGES] == ["al2023"]
    at_home = [(one.host, one.port) for one in egress.of(plan(network=PRIVATE), "amazonaws.com")]
    assert ("10.0.0.0/16", 443) in at_home


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"image": None}, "image: ubuntu-24.04 lacks python3-venv, nfs-common, openmpi-bin.*mirrors"),
        ({"storage": "head"}, "storage: the head would need nfs-kernel-server"),
        ({"ssh_from": "203.0.113.0/24"}, "ssh_from: is for a public head, and `network` has access: private; remove"),
        ({"network": {**PRIVATE, "head_subnet": "subnet-0123456789abcdef0"}}, "network: only EC2 knows a subnet"),
        ({"network": {"access": "secret"}}, "network: access must be public or private, is 'secret'"),
        ({"region": "cn-north-1"}, "network: access can't be private in cn-north-1"),
        ({"network": {**PRIVATE, "cidr": "10.9.0.0/27"}, "nodes": 20}, "has 16 addresses for workers, and 19"),
    ],
)
def test_what_can_t_work_is_refused(fields: dict[str, Any], message: str):
    with pytest.raises(SpecError, match=message):
        private(**fields)


def test_a_refused_image_is_answered_with_those_that_can():
    with pytest.raises(SpecError) as refused:
        private(image="ubuntu-22.04")
    assert "dlami-pytorch, dlami-base" in refused.value.hint
    with pytest.raises(SpecError) as refused:
        private(replace(GPU_FACTS, gpus=8), type="p5.48xlarge", image="ubuntu-22.04", boot="install a driver")
    assert "dlami-base" in refused.value.hint


def test_emr_has_no_private_access():
    fields = {"cloud": "emr", "type": "m5.xlarge", "ssh_from": "203.0.113.0/24", "emr": {"logs": "s3://bucket"}}
    with raises_code("not-on-emr", "network: "):
        spec(**fields, network=PRIVATE)


def test_all_addresses_of_the_vpc_are_one_subnet_s():
    assert subnets.new("10.9.0.0/26", 9) == subnets.NewNetwork("10.9.0.0/26", "", "10.9.0.0/26", 9)
    assert subnets.new("10.9.0.0/26", 9).places == 64 - 5 - 1 - 1 - 9


def test_the_file_says_private_and_needs_no_network_for_ssh(tmp_path: Path):
    file = tmp_path / "phalanx.yaml"
    file.write_text("name: demo\ncloud: aws\nnodes: 2\nnetwork: {access: private}\n")
    assert load(file).is_private
    assert load(file).ssh_sources == ()
    file.write_text("name: demo\nnodes: 2\nnetwork: {access: public}\n")
    assert not load(file).is_private


def test_the_schema_knows_that_a_private_head_has_no_ssh_from():
    given = {"name": "demo", "cloud": "aws", "nodes": 2, "network": PRIVATE}
    check = jsonschema.Draft202012Validator(json_schema())
    assert check.is_valid(given)
    assert not check.is_valid({**given, "ssh_from": "203.0.113.0/24"})
    assert not check.is_valid({**given, "network": {"access": "public"}})


def test_the_policy_of_users_lets_them_begin_and_end_logins():
    granted = policy(document(private()), "demo")["Statement"]
    (start,) = (one for one in granted if "ssm:StartSession" in one["Action"] and "instance" in str(one["Resource"]))
    assert start["Condition"] == {"StringLike": {"ssm:resourceTag/phalanx:cluster": ["demo"]}}
    assert "AWS-StartSSHSession" in str(granted)
    (own,) = (one for one in granted if "ssm:TerminateSession" in one["Action"])
    assert "ssmmessages:OpenDataChannel" in own["Action"] and "arn:*:ssm:*:*:session/${aws:userid}-*" in own["Resource"]
    assert "route53:AssociateVPCWithHostedZone" in str(granted)
    public = str(policy(document(plan()), "demo"))
    assert not [one for one in ("StartSession", "route53") if one in public]


@pytest.mark.parametrize(
    ("output", "kind", "message"),
    [
        (
            "An error occurred (TargetNotConnected) when calling the StartSession operation: i-1 is not connected.\n"
            "Connection closed by UNKNOWN port 65535",
            NotListening,
            "AWS Systems Manager has no connection to it",
        ),
        (
            "An error occurred (AccessDeniedException) when calling the StartSession operation: no\nConnection closed",
            ClusterError,
            r"An error occurred \(AccessDeniedException\) when calling the StartSession operation: no",
        ),
        (
            "phalanx: the command `aws` is not installed, and so on; install it: https://a\nConnection closed by x",
            ClusterError,
            "the command `aws` is not installed, and so on",
        ),
        (
            'Unable to locate credentials. Use "aws configure".\nConnection closed by x',
            ClusterError,
            "Unable to locate",
        ),
    ],
)
def test_what_the_aws_cli_says_is_what_the_user_reads(output: str, kind: type[ClusterError], message: str):
    error = classify("deeplearning-worker1", output)
    assert type(error) is kind
    with pytest.raises(ClusterError, match=message):
        raise error


@pytest.mark.parametrize(
    ("address", "variables", "is_said"),
    [
        ("i-0123456789abcdef0", {}, True),
        ("i-0123456789abcdef0", {"PIP_INDEX_URL": "https://mirror.example.com/simple"}, False),
        ("54.0.0.1", {}, False),
    ],
)
def test_run_says_that_an_environment_needs_a_mirror(monkeypatch, capsys, address: str, variables: Any, is_said: bool):
    cluster = Cluster("demo", "aws", "us-east-1", head_address=address)
    job = JobSpec(("true",), environment=Environment("mine", {}, (), variables=variables))
    monkeypatch.setattr("phalanx.cli.starting.submit", lambda *_, **__: SimpleNamespace(id="job"))
    monkeypatch.setattr("phalanx.cli.following.Terminated.catch", lambda: None)
    assert starting.start(cluster, job, detach=True) == 0
    assert ("no node of demo reaches the internet" in capsys.readouterr().err) == is_said
