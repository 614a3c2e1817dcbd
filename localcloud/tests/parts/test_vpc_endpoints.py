"""VPC endpoints of the local cloud: what EC2's records say of them, their policies, and requests without a way."""

from __future__ import annotations

import io
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import wsgi_clients
from botocore.exceptions import ClientError
from fleet_fakes import IMAGE, REGION, Cloud, cloud, endpoint, name

from localcloud.api.http import VPC
from localcloud.cloudformation import waitconditions
from localcloud.ec2 import fleet
from localcloud.iam import credentials
from localcloud.iam.calls import ENDPOINT_POLICY
from localcloud.network import reach, reading
from localcloud.network.reach import Way

HTTPS = {"IpProtocol": "tcp", "FromPort": 443, "ToPort": 443}
SERVICE = f"com.amazonaws.{REGION}."


@dataclass
class Site:
    """A VPC with a node and no way out."""

    cloud: Cloud
    vpc: str
    subnet: str
    node: str
    groups: dict[str, str]

    @property
    def ec2(self) -> Any:
        return self.cloud.client("ec2")

    def reaches(self, *services: str) -> list[str]:
        network = reading.network(self.cloud.context.account, self.vpc, fleet.current().live())
        assert network is not None
        return [one for one in services if reach.way(network, self.node, one) is not None]

    def interface_endpoint(self, service: str, **more: Any) -> dict[str, Any]:
        place = {"VpcId": self.vpc, "SubnetIds": [self.subnet], "SecurityGroupIds": [self.groups["doors"]]}
        asked = {"VpcEndpointType": "Interface", "ServiceName": SERVICE + service, **place, **more}
        return self.ec2.create_vpc_endpoint(**asked)["VpcEndpoint"]

    def main_table(self) -> str:
        here = [{"Name": "vpc-id", "Values": [self.vpc]}]
        return self.ec2.describe_route_tables(Filters=here)["RouteTables"][0]["RouteTableId"]


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    with cloud(tmp_path_factory.mktemp("cloud")) as made:
        yield made


@pytest.fixture
def site(local: Cloud) -> Site:
    vpc, (subnet,) = local.network()
    ec2 = local.client("ec2")
    ec2.modify_vpc_attribute(VpcId=vpc, EnableDnsHostnames={"Value": True})
    groups = {
        one: ec2.create_security_group(GroupName=name(one), Description=one, VpcId=vpc)["GroupId"]
        for one in ("nodes", "doors", "closed")
    }
    own = [{**HTTPS, "UserIdGroupPairs": [{"GroupId": groups["nodes"]}]}]
    ec2.authorize_security_group_ingress(GroupId=groups["doors"], IpPermissions=own)
    where = {"SubnetId": subnet, "SecurityGroupIds": [groups["nodes"]]}
    (node,) = ec2.run_instances(ImageId=IMAGE, MinCount=1, MaxCount=1, InstanceType="c5.large", **where)["Instances"]
    return Site(local, vpc, subnet, node["PrivateIpAddress"], groups)


def test_an_interface_endpoint_has_an_address_of_its_subnet_and_serves_one_service(site: Site):
    assert site.reaches("sqs", "sts") == []
    made = site.interface_endpoint("sqs")
    (found,) = site.ec2.describe_network_interfaces(NetworkInterfaceIds=made["NetworkInterfaceIds"])[
        "NetworkInterfaces"
    ]
    assert found["PrivateIpAddress"].startswith("10.0.1.")
    assert found["PrivateIpAddress"] != site.node
    assert site.reaches("sqs", "sts") == ["sqs"]
    site.ec2.delete_vpc_endpoints(VpcEndpointIds=[made["VpcEndpointId"]])
    assert site.reaches("sqs") == []


def test_its_groups_decide_also_after_a_change(site: Site):
    changed = {"VpcEndpointId": site.interface_endpoint("sqs")["VpcEndpointId"]}
    open_, closed = [site.groups["doors"]], [site.groups["closed"]]
    site.ec2.modify_vpc_endpoint(**changed, AddSecurityGroupIds=closed, RemoveSecurityGroupIds=open_)
    assert site.reaches("sqs") == []
    site.ec2.modify_vpc_endpoint(**changed, AddSecurityGroupIds=open_, RemoveSecurityGroupIds=closed)
    assert site.reaches("sqs") == ["sqs"]


def test_without_private_dns_nobody_finds_it(site: Site):
    site.interface_endpoint("sqs", PrivateDnsEnabled=False)
    assert site.reaches("sqs") == []


def test_a_second_one_can_t_take_over_the_name(site: Site):
    site.interface_endpoint("sqs")
    with pytest.raises(ClientError, match=r"conflicting DNS domain for sqs.us-east-1.amazonaws.com"):
        site.interface_endpoint("sqs")


@pytest.mark.parametrize("kind", [{"VpcEndpointType": "Gateway"}, {}], ids=["a gateway", "the default"])
def test_a_gateway_endpoint_serves_the_tables_that_it_has_now(site: Site, kind: dict[str, str]):
    answer = site.ec2.create_vpc_endpoint(VpcId=site.vpc, ServiceName=f"{SERVICE}s3", **kind)["VpcEndpoint"]
    made = answer["VpcEndpointId"]
    assert answer["VpcEndpointType"] == "Gateway"
    assert site.reaches("s3", "dynamodb") == []
    site.ec2.modify_vpc_endpoint(VpcEndpointId=made, AddRouteTableIds=[site.main_table()])
    assert site.reaches("s3", "dynamodb") == ["s3"]
    site.ec2.modify_vpc_endpoint(VpcEndpointId=made, RemoveRouteTableIds=[site.main_table()])
    assert site.reaches("s3") == []


def test_an_endpoint_s_policy_limits_what_a_role_may_do_through_it(local: Cloud):
    url, arn = local.queue()
    role = local.role("lambda.amazonaws.com", {"Effect": "Allow", "Action": "sqs:*", "Resource": "*"})
    issued = credentials.for_function(
        local.context, f"arn:aws:iam::{local.context.account}:role/{role}", name("function")
    ).issued
    through = {"Effect": "Allow", "Principal": "*", "Action": "sqs:SendMessage", "Resource": arn}

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        document = json.dumps({"Statement": [through]})
        return endpoint().app({**environ, ENDPOINT_POLICY: document}, start_response)

    sqs = wsgi_clients.client("sqs", REGION, local.context.url_host, issued, lambda: app)
    sqs.send_message(QueueUrl=url, MessageBody="hello")
    with pytest.raises(ClientError, match="because no VPC endpoint policy allows the sqs:ReceiveMessage action"):
        sqs.receive_message(QueueUrl=url)
    through["Principal"] = {"AWS": f"arn:aws:iam::{local.context.account}:role/{role}"}
    sqs.send_message(QueueUrl=url, MessageBody="by its name")
    through["Principal"] = {"AWS": "arn:aws:iam::999999999999:root"}
    with pytest.raises(ClientError, match="because no VPC endpoint policy allows the sqs:SendMessage action"):
        sqs.send_message(QueueUrl=url, MessageBody="of another account")


OPEN = {"Effect": "Allow", "Principal": "*", "Action": "*", "Resource": "*"}
OWN_ACCOUNT = {**OPEN, "Condition": {"StringEquals": {"aws:PrincipalAccount": "123456789012"}}}
SIGNED = {"HTTP_AUTHORIZATION": "AWS4-HMAC-SHA256 Credential=AKIA/20261123/us-east-1/sqs/aws4_request, x=y"}


class Ways:
    """Knows the ways of one node, and records what it was asked."""

    def __init__(self, **ways: Way | None) -> None:
        self.ways, self.asked = ways, []

    def way(self, vpc_id: str, address: str, service: str) -> Way | None:
        self.asked.append((vpc_id, address, service))
        return self.ways.get(service)


def asked(ways: Ways, environ: Mapping[str, Any] = SIGNED, vpc: str = "vpc-1") -> dict[str, Any] | None:
    """Return the environment that comes through the doorway; None if none does."""
    seen: list[dict[str, Any]] = []
    app = reach.around(ways, lambda environ, _start: seen.append(environ) or [])
    app({VPC: vpc, "REMOTE_ADDR": "10.0.1.4", "PATH_INFO": "/", **environ}, lambda *_: None)
    return seen[0] if seen else None


def test_requests_from_this_machine_are_not_judged():
    ways = Ways()
    assert asked(ways, vpc="") is not None
    assert ways.asked == []


def test_a_request_is_judged_by_the_service_of_its_signature_and_a_signal_by_the_bucket_behind_it():
    ways = Ways(sqs=Way("policy"), s3=Way())
    came = asked(ways)
    assert came is not None
    assert came[ENDPOINT_POLICY] == "policy"
    assert asked(ways, {"PATH_INFO": f"{reach.WAIT_PATH}stack/handle"})
    assert [service for _, _, service in ways.asked] == ["sqs", "s3"]


@pytest.mark.parametrize(
    ("statements", "status"),
    [
        ([OPEN], "200 OK"),
        ([OWN_ACCOUNT], "403 Forbidden"),
        ([OWN_ACCOUNT, {**OPEN, "Resource": "arn:aws:s3:::cloudformation-waitcondition-us-west-2/*"}], "403 Forbidden"),
        ([OWN_ACCOUNT, {**OPEN, "Resource": "arn:aws:s3:::cloudformation-waitcondition-us-east-1/*"}], "200 OK"),
    ],
)
def test_a_signal_passes_s3_s_endpoint_only_if_its_policy_names_cloudformation_s_bucket(
    statements: list[dict[str, Any]], status: str
):
    """CloudFormation has signed the URL, so that the account's own principals are not who asks."""
    engine: Any = SimpleNamespace(signal_handle=lambda *_: True)
    environ = {"REQUEST_METHOD": "PUT", "wsgi.input": io.BytesIO(b"{}"), "CONTENT_LENGTH": "2"}
    environ[ENDPOINT_POLICY] = json.dumps({"Statement": statements})
    answered: list[str] = []
    handle = f"http://169.254.1.1{reach.WAIT_PATH}us-east-1/secret"
    waitconditions.answer(engine, handle, environ, lambda status, _: answered.append(status))
    assert answered == [status]


@pytest.mark.parametrize("environ", [SIGNED, {}])
def test_a_request_without_a_way_is_not_answered_and_ends_with_its_client(environ: dict[str, str]):
    client, server = socket.socketpair()
    with client, server:
        threading.Timer(0.2, client.close).start()
        before = time.monotonic()
        with pytest.raises(ConnectionAbortedError):
            asked(Ways(), {**environ, "werkzeug.socket": server})
        assert time.monotonic() - before > 0.1
