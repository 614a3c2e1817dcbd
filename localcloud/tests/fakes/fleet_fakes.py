"""A local cloud without nodes: a runner that only records, a clock that stands still, the API on loopback."""

from __future__ import annotations

import functools
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import wsgi_clients

from localcloud.api import moto_setup

# As in the local cloud, before anything imports moto's EC2.
moto_setup.install()

from moto.backends import get_backend  # noqa: E402
from moto.moto_server.werkzeug_app import MotoRequestHandler  # noqa: E402
from werkzeug.serving import make_server  # noqa: E402

from localcloud.api import app as api  # noqa: E402
from localcloud.api import throttling  # noqa: E402
from localcloud.api.served import gate  # noqa: E402
from localcloud.context import ADMIN, Context, Issued  # noqa: E402
from localcloud.iam import middleware as iam  # noqa: E402
from localcloud.storage import file_systems, tables  # noqa: E402

REGION = "us-east-1"
ALL_KINDS = [
    "autoscaling:EC2_INSTANCE_LAUNCH",
    "autoscaling:EC2_INSTANCE_LAUNCH_ERROR",
    "autoscaling:EC2_INSTANCE_TERMINATE",
]
ZONE = "us-east-1a"
IMAGE = moto_setup.IMAGES["x86_64"]
ADMINISTRATOR = Issued("AKIAADMINISTRATOR000", "secret", "", ADMIN)
# Shared by all tests: making a boto3 client takes longer than most tests.
_clients: dict[tuple[str, str, str], Any] = {}
_numbers = itertools.count(1)


def name(kind: str) -> str:
    """Make a name that no other test uses, because moto's resources outlive a test."""
    return f"{kind}-{next(_numbers)}"


def until(condition: Callable[[], Any], what: str = "", timeout_s: float = 180.0) -> Any:
    """Wait for another thread, or a process: at first by many looks, because it may take milliseconds only."""
    began = time.monotonic()
    while not (value := condition()):
        waited_s = time.monotonic() - began
        assert waited_s < timeout_s, f"did not come about: {what or condition}"
        time.sleep(min(0.2, 0.001 + waited_s / 10))
    return value


class FakeRunner:
    """Records what was booted and killed. `broken` makes boots fail with its message; `gate` blocks them."""

    def __init__(self) -> None:
        self.booted: dict[str, Any] = {}
        self.killed: list[tuple[str, bool]] = []
        self.rebooted: list[str] = []
        self.stopped: list[str] = []
        self.given_way_out: list[str] = []
        self.stalled: dict[str, bool] = {}
        self.frozen_s: dict[str, float] = {}
        self.cut: dict[str, bool] = {}
        self.broken = ""
        self.gate = threading.Event()
        self.gate.set()
        self.on_exit: Callable[[str], None] = lambda _instance_id: None

    def boot(self, machine: Any) -> None:
        assert self.gate.wait(60)
        if self.broken:
            raise RuntimeError(self.broken)
        self.booted[machine.instance_id] = machine

    def kill(self, instance_id: str, silent: bool = False) -> None:
        self.killed.append((instance_id, silent))

    def reboot(self, instance_id: str) -> None:
        self.rebooted.append(instance_id)

    def stop(self, instance_id: str) -> None:
        self.stopped.append(instance_id)

    def partition(self, instance_id: str, cut: bool) -> None:
        self.cut[instance_id] = cut

    def stall(self, instance_id: str, stalled: bool) -> None:
        self.stalled[instance_id] = stalled

    def freeze(self, instance_id: str, for_s: float) -> None:
        self.frozen_s[instance_id] = for_s

    def nodes(self) -> list[Any]:
        return list(self.booted.values())

    def give_way_out(self, instance_id: str) -> None:
        self.given_way_out.append(instance_id)


@dataclass(eq=False)
class Due:
    """A pending call of a FakeClock."""

    when: datetime
    call: Callable[..., object]
    args: tuple[Any, ...]
    clock: FakeClock

    def cancel(self) -> None:
        if self in self.clock.due:
            self.clock.due.remove(self)


class FakeClock:
    """Time that moves only by `advance`."""

    def __init__(self) -> None:
        self.time = datetime(2026, 11, 20, 10, 0, 0, tzinfo=timezone.utc)
        self.due: list[Due] = []

    def now(self) -> datetime:
        return self.time

    def call_later(self, delay_s: float, call: Callable[..., object], *args: Any) -> Due:
        self.due.append(Due(self.time + timedelta(seconds=delay_s), call, args, self))
        return self.due[-1]

    def delays_s(self) -> list[float]:
        """Return the delays of the pending calls."""
        return sorted((one.when - self.time).total_seconds() for one in list(self.due))

    def advance(self, seconds: float) -> None:
        """Advance the time and make the calls that are due."""
        self.time += timedelta(seconds=seconds)
        for one in [one for one in self.due if one.when <= self.time]:
            one.cancel()
            one.call(*one.args)


@dataclass
class Cloud:
    """An installed local cloud and boto3 clients for it."""

    context: Context
    runner: FakeRunner
    clock: FakeClock

    def client(self, service: str, issued: Issued = ADMINISTRATOR) -> Any:
        """Return a cached client with the administrator's credentials, or with those given."""
        key = (service, issued.access_key_id, issued.session_token)
        if key not in _clients:
            _clients[key] = self.fresh_client(service, issued)
        return _clients[key]

    def fresh_client(self, service: str, issued: Issued) -> Any:
        """Make a new client."""
        return wsgi_clients.client(service, REGION, self.context.url_host, issued, lambda: endpoint().app)

    def network(self, zones: tuple[str, ...] = (ZONE,)) -> tuple[str, list[str]]:
        """Create a VPC with a subnet in each zone."""
        api = self.client("ec2")
        vpc = api.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
        subnets = [
            api.create_subnet(VpcId=vpc, CidrBlock=f"10.0.{i}.0/24", AvailabilityZone=zone)["Subnet"]["SubnetId"]
            for i, zone in enumerate(zones, 1)
        ]
        return vpc, subnets

    def template(self, **data: Any) -> str:
        """Create a launch template; return its id."""
        data = {"ImageId": IMAGE, "InstanceType": "c5.large", **data}
        made = self.client("ec2").create_launch_template(LaunchTemplateName=name("template"), LaunchTemplateData=data)
        return made["LaunchTemplate"]["LaunchTemplateId"]

    def role(self, service: str = "ec2.amazonaws.com", *statements: dict[str, Any]) -> str:
        """Create a role that the service may assume, with one inline policy."""
        api, role = self.client("iam"), name("role")
        trust = {"Statement": [{"Effect": "Allow", "Principal": {"Service": service}, "Action": "sts:AssumeRole"}]}
        api.create_role(RoleName=role, AssumeRolePolicyDocument=json.dumps(trust))
        if statements:
            document = {"Version": "2012-10-17", "Statement": list(statements)}
            api.put_role_policy(RoleName=role, PolicyName="inline", PolicyDocument=json.dumps(document))
        return role

    def profile(self, role: str) -> str:
        """Create an instance profile; return its name."""
        profile = name("profile")
        self.client("iam").create_instance_profile(InstanceProfileName=profile)
        self.client("iam").add_role_to_instance_profile(InstanceProfileName=profile, RoleName=role)
        return profile

    def queue(self, allow_sns: bool = True) -> tuple[str, str]:
        """Create a queue; return its URL and ARN."""
        api = self.client("sqs")
        url = api.create_queue(QueueName=name("queue"))["QueueUrl"]
        arn = api.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        if allow_sns:
            allow = {"Effect": "Allow", "Principal": {"Service": "sns.amazonaws.com"}, "Action": "sqs:SendMessage"}
            document = {"Statement": [{**allow, "Resource": arn}]}
            api.set_queue_attributes(QueueUrl=url, Attributes={"Policy": json.dumps(document)})
        return url, arn


class _Quiet(MotoRequestHandler):
    protocol_version = "HTTP/1.1"

    def log(self, *args: Any) -> None:
        """Log nothing."""


class Endpoint:
    """One server for all tests; `app` is the API of the current test's cloud."""

    def __init__(self) -> None:
        self.app: Any = None
        server = make_server("127.0.0.1", 0, self._answer, threaded=True, request_handler=_Quiet)
        self.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()

    def _answer(self, environ: dict[str, Any], start_response: Any) -> Any:
        return self.app(environ, start_response)


@functools.cache
def endpoint() -> Endpoint:
    return Endpoint()


def forget_resources(account: str) -> None:
    """Empty moto, because other tests in this process list all resources."""
    for service in ("dynamodb", "ec2", "efs", "iam", "lambda", "logs", "sns", "sqs"):
        for backend in list(get_backend(service)[account].values()):
            backend.reset()


@contextmanager
def cloud(state: Path) -> Iterator[Cloud]:
    """Install the fleet's parts and serve the API on loopback; only one cloud at a time."""
    runner, clock, url = FakeRunner(), FakeClock(), endpoint().url
    context = Context(runner=runner, state=state, url_host=url, url_nodes=url, clock=clock)  # type: ignore[arg-type]
    context.issued[ADMINISTRATOR.access_key_id] = ADMINISTRATOR
    # The nodes are fakes, and mount nothing.
    parts = [part for part in api.PARTS if part is not file_systems]
    for module in parts:
        module.install(context)
    endpoint().app = iam.wrap(context, throttling.wrap(context, tables.wrap(context, gate.wrap(api.MOTO))))
    try:
        yield Cloud(context, runner, clock)
    finally:
        context.stop()
        forget_resources(context.account)


class Group:
    """A group under test, with short methods."""

    def __init__(self, local: Cloud, zones=("us-east-1a",), template=None, **settings) -> None:
        self.local, self.name, self.api = local, name("group"), local.client("autoscaling")
        _, self.subnets = local.network(zones)
        sizes = {"MinSize": 0, "MaxSize": 10, **settings}
        self.api.create_auto_scaling_group(
            AutoScalingGroupName=self.name,
            LaunchTemplate={"LaunchTemplateId": template or local.template()},
            VPCZoneIdentifier=",".join(self.subnets),
            **sizes,
        )

    def shown(self) -> dict:
        found = self.api.describe_auto_scaling_groups(AutoScalingGroupNames=[self.name])["AutoScalingGroups"]
        return found[0] if found else {}

    def in_service(self) -> list[str]:
        return [one["InstanceId"] for one in self.shown()["Instances"] if one["LifecycleState"] == "InService"]

    def want(self, desired: int) -> None:
        self.api.set_desired_capacity(AutoScalingGroupName=self.name, DesiredCapacity=desired)

    def reaches(self, count: int) -> list[str]:
        def there() -> bool:
            shown = self.shown()["Instances"]
            return len(shown) == count and all(one["LifecycleState"] == "InService" for one in shown)

        until(there, f"{count} instances in service")
        return self.in_service()

    def activities(self) -> list[dict]:
        return self.api.describe_scaling_activities(AutoScalingGroupName=self.name)["Activities"]

    def failed(self) -> list[dict]:
        return [one for one in self.activities() if one["StatusCode"] == "Failed"]


def subscribed(local: Cloud) -> tuple[str, str]:
    """Create a topic with a subscribed queue; return the topic's ARN and the queue's URL."""
    url, queue_arn = local.queue()
    topic = local.client("sns").create_topic(Name=name("topic"))["TopicArn"]
    local.client("sns").subscribe(TopicArn=topic, Protocol="sqs", Endpoint=queue_arn)
    return topic, url


def received(local: Cloud, url: str) -> list[tuple[str, dict]]:
    api = local.client("sqs")
    messages = api.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages", [])
    for message in messages:
        api.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    envelopes = [json.loads(message["Body"]) for message in messages]
    return [(one["Subject"], json.loads(one["Message"])) for one in envelopes]
