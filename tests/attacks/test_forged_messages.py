"""Root on a worker sends messages to the head: it can only speak for itself, and neither stop nor mislead the head."""

from __future__ import annotations

import json
import textwrap
import time
from typing import Any

import pytest
from botocore.exceptions import ClientError
from fleet_fakes import until
from local_clouds import api, api_of_node
from terminals import a_cluster, shared_of

from phalanx.node import beats, validate

pytestmark = pytest.mark.cluster

# Root on a node that is no member yet: what it says before its agent does. Then the head has time to believe it.
FIRST_WORDS = """#!/usr/bin/env python3
import json, os, time
if os.path.exists("/efs/first_words"):
    import boto3
    settings = json.load(open("/opt/phalanx/config.json"))
    key, comment = open("/etc/ssh/phalanx/id_ed25519.pub").read().rsplit(maxsplit=1)
    address = os.uname().nodename.removeprefix("ip-").replace("-", ".")
    own = {"kind": "hello", "instance_id": comment, "address": address, "hostname": os.uname().nodename}
    own |= {"user_key": key, "host_key": open("/etc/ssh/ssh_host_ed25519_key.pub").read().strip()}
    queue = boto3.client("sqs", settings["stack_id"].split(":")[3])
    for forged in json.load(open("/efs/first_words")):
        queue.send_message(QueueUrl=settings["queue_url"], MessageBody=json.dumps({**forged, **own, **forged}))
    time.sleep(3)
"""
SPEC = "name: forged\ncloud: local\nnodes: 3\nmin: 3\ntype: c5.large\nshared: /efs\nkeep: no\nboot: |\n"
SPEC += textwrap.indent(FIRST_WORDS, "  ")
HEARD_WITHIN_S = 300.0
# The head checks its fleet within a second of a hint, and its nodes learn of a new generation within another.
FOLLOWED_WITHIN_S = 2.0
# The paths where the attacks would leave traces on a node.
TRACES = """ls -d /etc/cron.d/x* /opt/phalanx/authority/x* 2>/dev/null
cd /etc/ssh; grep -rse evil -e PermitRootLogin sshd_config.d ssh_known_hosts phalanx /etc/hosts
echo looked"""


@pytest.fixture(scope="module")
def terminal():
    """A head and two workers, of which the last is the attacker's."""
    with a_cluster(SPEC) as terminal:
        yield terminal


@pytest.fixture(scope="module")
def attacker(terminal) -> Any:
    """An SQS client with the credentials of the attacker's instance."""
    return api_of_node(terminal, "worker3", "sqs")


@pytest.fixture(autouse=True)
def no_traces(terminal):
    """Check that no test leaves anything on a node, whatever their order."""
    yield
    for node in roster(terminal)["nodes"]:
        assert terminal.on(node["name"], TRACES) == "looked\n", node["name"]


def send(terminal, attacker, *messages: object) -> None:
    """Send messages and wait until the head has read all of them from its queue."""
    queues = api(terminal, "sqs")
    (url,) = queues.list_queues()["QueueUrls"]
    for message in messages:
        attacker.send_message(QueueUrl=url, MessageBody=message if isinstance(message, str) else json.dumps(message))
    deadline = time.monotonic() + HEARD_WITHIN_S
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    while set(queues.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"].values()) != {"0"}:
        assert time.monotonic() < deadline, "the head does not delete what it was sent"
        time.sleep(0.3)


def hello(of: dict, **changes: object) -> dict:
    """Build the hello that this node's agent sends."""
    fields = ("instance_id", "address", "hostname", "zone", "type", "gpus", "slots", "host_key", "user_key")
    return {"kind": "hello", **{name: of[name] for name in fields}, **changes}


def of_attacker(roster: dict) -> dict:
    return next(node for node in roster["nodes"] if node["name"] == "deeplearning-worker3")


def item(terminal, key: str) -> dict:
    table = api(terminal, "dynamodb")
    (name,) = table.list_tables()["TableNames"]
    return table.get_item(TableName=name, Key={"item": {"S": key}}, ConsistentRead=True)["Item"]


def roster(terminal) -> dict:
    return json.loads(validate.unpacked(item(terminal, "roster")["roster"]["B"]))


def refused(terminal) -> int:
    """How many messages the head had not believed when it last wrote a generation."""
    return int(item(terminal, "generation")["refused"]["N"])


def settled(terminal, attacker, *messages: object) -> dict:
    """Return the roster after the head has handled these messages and their consequences."""
    send(terminal, attacker, *messages, {"kind": "wish"})
    time.sleep(FOLLOWED_WITHIN_S)
    return roster(terminal)


def eviction(roster: dict) -> dict:
    """Report the failure of another node, which would make room for an invented one."""
    forged = {"kind": "failed", "step": "x", "command": "x", "exit": 1, "output": "evil"}
    return {**forged, "instance_id": roster["nodes"][1]["instance_id"]}


def test_another_nodes_failure_does_not_evict_it(terminal, attacker):
    before = roster(terminal)
    assert settled(terminal, attacker, eviction(before)) == before


def test_a_notice_about_other_nodes_makes_none_leave(terminal, attacker):
    """No job would begin on them, and those that run there would be told to save and end."""
    before = roster(terminal)
    others = [node["instance_id"] for node in before["nodes"] if node != of_attacker(before)]
    notices = [{"kind": "leaving", "instance_id": one, "reason": "evil"} for one in others]
    assert settled(terminal, attacker, *notices) == before


def test_an_instance_id_writes_no_file_on_the_head(terminal, attacker):
    before = roster(terminal)
    elsewhere = {"instance_id": "../../../../etc/cron.d/x", "address": "10.0.16.99"}
    forged = hello(of_attacker(before), **elsewhere, host_key="* * * * * root evil")
    assert settled(terminal, attacker, eviction(before), forged) == before


EVIL = [
    {"hostname": "x\n@cert-authority * ssh-ed25519 AAAAevil"},
    {"hostname": "x,deeplearning-master"},
    {"hostname": "ip-10-0-0-4"},
    {"gpus": "0\nPermitRootLogin yes"},
    {"address": "10.0.0.4"},
    {"user_key": "ssh-ed25519 AAAAevil\nssh-ed25519 AAAAevil"},
    {"zone": None, "slots": 10**9},
    {"address": "not-an-address"},
]


@pytest.mark.parametrize("changes", EVIL, ids="-".join)
def test_an_invented_node_is_no_member(terminal, attacker, changes):
    before = roster(terminal)
    invented = {"instance_id": "i-0123456789abcdef0", "address": "10.0.16.99", "host_key": "ssh-ed25519 AAAAevil"}
    forged = hello(of_attacker(before), **{**invented, **changes})
    assert settled(terminal, attacker, eviction(before), forged) == before


def test_its_own_hello_again_changes_nothing(terminal, attacker):
    before = roster(terminal)
    own = [hello(of_attacker(before), **changes) for changes in [*EVIL, {"host_key": "ssh-ed25519 AAAAevil"}]]
    assert settled(terminal, attacker, *own) == before


def test_an_invalid_message_stops_nobody(terminal, attacker):
    before = roster(terminal)
    nonsense = [
        "[" * 50_000,
        "null",
        "{}",
        '{"kind":"ack"}',
        '{"kind":"ack","instance_id":[],"generation":{}}',
        "x" * 9,
    ]
    assert settled(terminal, attacker, *nonsense, *[{"kind": "wish"}] * 20) == before
    # An agent that failed would have deleted these all the same, and begins again with a new generation.
    assert settled(terminal, attacker) == before


def test_a_new_nodes_first_words_are_checked_and_the_head_still_takes_it_in_and_lets_it_go(terminal):
    """The attacker's own node stays: the other tests need it, and their order is random."""
    sound = {"zone": "us-east-1a", "type": "c5.large", "gpus": 0, "slots": 2}
    shown = [{**sound, **changes} for changes in [*EVIL, {"host_key": "ssh-ed25519 AAAAevil\nHost *"}]]
    (shared_of(terminal) / "first_words").write_text(json.dumps(shown))
    before = refused(terminal)
    assert "has 4 of 4 nodes" in terminal.phalanx("scale", "4", "--yes").stdout
    new = roster(terminal)["nodes"][3]
    assert (new["hostname"], new["gpus"]) == ("ip-" + new["address"].replace(".", "-"), 0)
    assert terminal.on("worker4", TRACES) == terminal.on("head", TRACES) == "looked\n"
    assert refused(terminal) >= before + len(shown)
    assert "has 3 of 3 nodes" in terminal.phalanx("scale", "3", "--yes").stdout


def test_a_job_takes_no_port_on_which_the_head_hears_beats(terminal):
    """Else it could while the agent restarts, whose head would then serve nobody."""
    bind = f"import socket; socket.socket(type=socket.SOCK_DGRAM).bind(('127.0.0.1', {beats.PORT}))"
    assert "PermissionError" in terminal.on("head", f'python3 -c "{bind}" 2>&1', check=False)


def test_a_node_writes_no_boot_log_but_its_own(terminal):
    logs, root_on_worker3 = api(terminal, "logs"), api_of_node(terminal, "worker3", "logs")
    (group,) = (one["logGroupName"] for one in logs.describe_log_groups()["logGroups"])
    forged = [{"timestamp": int(time.time() * 1000), "message": "forged"}]
    own = of_attacker(roster(terminal))["address"]
    own_streams = {node["address"] for node in roster(terminal)["nodes"]}

    def streams() -> list[str]:
        return [one["logStreamName"] for one in logs.describe_log_streams(logGroupName=group)["logStreams"]]

    theirs = until(lambda: (found := streams()) and own_streams <= set(found) and found, "a boot log of each node")
    for stream in {*theirs, f"{own}0", f"{own}/more", "10.0.9.9"} - {own}:
        with pytest.raises(ClientError, match="not authorized to perform: logs:PutLogEvents"):
            root_on_worker3.put_log_events(logGroupName=group, logStreamName=stream, logEvents=forged)
        with pytest.raises(ClientError, match="not authorized to perform: logs:CreateLogStream"):
            root_on_worker3.create_log_stream(logGroupName=group, logStreamName=stream)
    root_on_worker3.put_log_events(logGroupName=group, logStreamName=own, logEvents=forged)
