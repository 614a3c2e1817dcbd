"""Direct access to a terminal's local cloud: its API as the administrator, and fault injection."""

from __future__ import annotations

import json
import shlex
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import boto3

from phalanx.node import validate
from phalanx.node.roster import Roster

# Prints the credentials that root on a node gets from the metadata service, like the agent.
_CREDENTIALS = """import urllib.request as http
def ask(path, **more):
    return http.urlopen(http.Request("http://169.254.169.254/latest/" + path, **more)).read().decode()
token = ask("api/token", method="PUT", headers={"X-aws-ec2-metadata-token-ttl-seconds": "60"})
roles = "meta-data/iam/security-credentials/"
print(ask(roles + ask(roles, headers=(key := {"X-aws-ec2-metadata-token": token})), headers=key))
"""


def endpoint(terminal: Any) -> dict[str, Any]:
    """Read a local cloud's endpoint.json."""
    return json.loads((terminal.state / "local/endpoint.json").read_text())


def api(terminal: Any, service: str) -> Any:
    """Make a boto3 client for a service."""
    there = endpoint(terminal)
    return boto3.client(
        service,
        region_name="us-east-1",
        endpoint_url=there["url"],
        aws_access_key_id=there["access_key_id"],
        aws_secret_access_key=there["secret_access_key"],
    )


def create_as_the_console(terminal: Any, name: str, document: str, **settings: Any) -> str:
    """Create a stack from a complete document as the console does, through a bucket; return the stack's id."""
    s3 = api(terminal, "s3")
    s3.create_bucket(Bucket=name)
    s3.put_object(Bucket=name, Key="template.json", Body=document.encode())
    asked = {"TemplateURL": f"{s3.meta.endpoint_url}/{name}/template.json", "Capabilities": ["CAPABILITY_IAM"]}
    return api(terminal, "cloudformation").create_stack(StackName=name, **asked, **settings)["StackId"]


def api_of_node(terminal: Any, node: str, service: str) -> Any:
    """Make a boto3 client for a service with the credentials of root on this node."""
    asked = f"python3 -c {shlex.quote(_CREDENTIALS)}"
    done = terminal.phalanx("exec", "--sudo", "--json", "--node", node, "--", asked)
    there = json.loads(json.loads(done.stdout)[0]["stdout"])
    return boto3.client(
        service,
        region_name="us-east-1",
        endpoint_url=endpoint(terminal)["url"],
        aws_access_key_id=there["AccessKeyId"],
        aws_secret_access_key=there["SecretAccessKey"],
        aws_session_token=there["Token"],
    )


def wait_for_roster(terminal: Any, is_so: Callable[[Roster], object], timeout_s: float = 400) -> Roster:
    """Wait for a roster in the head's table, because each `phalanx nodes` takes a third of a second of CPU time."""
    table = api(terminal, "dynamodb")
    (table_name,) = table.list_tables()["TableNames"]
    deadline = time.monotonic() + timeout_s
    while True:
        item = table.get_item(TableName=table_name, Key={"item": {"S": "roster"}}, ConsistentRead=True)["Item"]
        if is_so(found := validate.roster(item["roster"]["B"])):
            return found
        assert time.monotonic() < deadline, found
        time.sleep(1)


def wait_until_stopped(terminal: Any, timeout_s: float = 400) -> None:
    """Wait until the head's group is at 0: each `phalanx status` takes a third of a second of CPU time."""
    groups = api(terminal, "autoscaling")
    deadline = time.monotonic() + timeout_s
    while any(
        group["DesiredCapacity"]
        for group in groups.describe_auto_scaling_groups()["AutoScalingGroups"]
        if group["AutoScalingGroupName"].endswith("-head")
    ):
        assert time.monotonic() < deadline
        time.sleep(1)


@contextmanager
def bad_weather(terminal: Any, seed: int, *kinds: str, speed: float = 10) -> Iterator[None]:
    """Bring weather to a terminal's local cloud: all kinds, or these; calm it afterwards."""
    only = [word for kind in kinds for word in ("--only", kind)]
    terminal.phalanx("local", "weather", str(seed), "--speed", str(speed), *only)
    try:
        yield
    finally:
        terminal.phalanx("local", "weather", "off")


def break_on_purpose(terminal: Any, **faults: Any) -> None:
    """Set faults (localcloud.daemon.faults)."""
    there = endpoint(terminal)
    request = urllib.request.Request(f"{there['url']}/_localcloud/faults", json.dumps(faults).encode())
    request.add_header("X-Localcloud-Key", there["secret_access_key"])
    urllib.request.urlopen(request, timeout=180).close()
