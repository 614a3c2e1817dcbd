"""The small AWS client against a loopback server: what it sends, what it retries, what it gives up on."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from phalanx.node import outcome, wire
from phalanx.node.aws_client import Aws, AwsError
from phalanx.node.metadata import Metadata
from phalanx.node.services import Fleet, LogStream, Queue, Reading, Refusal, Table
from phalanx.node.settings import ON_AWS
from phalanx.node.sigv4 import Credentials, Request


class Script(BaseHTTPRequestHandler):
    """Gives the test's answers in order, and records the requests."""

    protocol_version = "HTTP/1.1"
    answers: list[tuple[int, str]]
    seen: list[tuple[str, str, dict[str, str], bytes]]
    connections: set[int]

    def handle_one(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.seen.append((self.command, self.path, dict(self.headers), body))
        self.connections.add(self.client_address[1])
        status, text = self.answers.pop(0) if self.answers else (200, "{}")
        self.send_response(status)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    do_GET = do_PUT = do_POST = handle_one  # noqa: N815

    def log_message(self, *_) -> None:
        pass


@pytest.fixture
def server(monkeypatch):
    handler = type("Here", (Script,), {"answers": [], "seen": [], "connections": set()})
    monkeypatch.setattr(wire.time, "sleep", lambda _: None)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        handler.url = f"http://127.0.0.1:{http.server_port}"
        monkeypatch.setenv("AWS_ENDPOINT_URL", handler.url)
        thread = threading.Thread(target=http.serve_forever, args=(0.005,))
        thread.start()
        yield handler
        http.shutdown()
        for connection in wire._kept.__dict__.values():
            connection.close()
        wire._kept.__dict__.clear()
        thread.join()


@pytest.fixture
def client(server) -> Aws:
    return Aws("us-east-1", "amazonaws.com", lambda fresh: Credentials("AKID", "fresh" if fresh else "old"))


def an_error(code: str, message: str = "words", status: int = 400) -> tuple[int, str]:
    return status, json.dumps({"__type": f"com.amazonaws#{code}", "message": message})


@pytest.mark.parametrize(
    "trouble",
    [
        an_error("ThrottlingException"),
        an_error("AccessDeniedException"),
        an_error("ProvisionedThroughputExceededException"),
        (500, "oops"),
        (503, ""),
        (400, "<R><Error><Code>ScalingActivityInProgress</Code><Message>m</Message></Error></R>"),
        (500, "<R><Error><Code>ResourceContention</Code><Message>m</Message></Error></R>"),
    ],
)
def test_temporary_errors_are_retried(server, client, trouble):
    server.answers += [trouble, trouble, (200, '{"ok":1}')]
    assert client.json("sqs", "AmazonSQS.SendMessage", {}) == {"ok": 1}
    assert len(server.seen) == 3


def test_permanent_errors_are_reported_at_once(server, client):
    server.answers += [an_error("ValidationException", 'a "quoted" thing')]
    with pytest.raises(AwsError, match="GetItem: ValidationException: a ") as caught:
        client.json("dynamodb", "DynamoDB_20120810.GetItem", {})
    assert caught.value.code == "ValidationException"
    assert len(server.seen) == 1


IMPATIENT = ON_AWS._replace(call_s=-1.0)


def test_trouble_has_a_deadline(server):
    server.answers += [an_error("AccessDenied")] * 3
    hasty = Aws("us-east-1", "amazonaws.com", lambda _: Credentials("A", "s"), IMPATIENT)
    with pytest.raises(AwsError, match="AccessDenied"):
        hasty.json("sqs", "AmazonSQS.SendMessage", {})


def test_expired_keys_are_fetched_again(server):
    asked = []

    def keys(fresh: bool) -> Credentials:
        asked.append(fresh)
        return Credentials("AKID", "s")

    server.answers += [an_error("ExpiredTokenException")]
    Aws("us-east-1", "amazonaws.com", keys).json("sqs", "AmazonSQS.SendMessage", {})
    assert asked == [False, True]


def test_one_connection_serves_many_calls(server, client):
    for _ in range(5):
        client.json("sqs", "AmazonSQS.SendMessage", {})
    assert len(server.connections) == 1


def test_no_answer_is_a_clear_error(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    nowhere = Aws("us-east-1", "amazonaws.com", lambda _: Credentials("A", "s"), IMPATIENT)
    with pytest.raises(AwsError, match=r"SendMessage: .*refused"):
        nowhere.json("sqs", "AmazonSQS.SendMessage", {})


def test_the_queue(server, client):
    queue = Queue(client, "https://queue")
    server.answers += [(200, "{}"), (200, json.dumps({"Messages": [{"Body": "b", "ReceiptHandle": "r"}]}))]
    queue.send({"kind": "hello"})
    messages = queue.receive(5)
    queue.delete(messages)
    targets = [headers["X-Amz-Target"] for _, _, headers, _ in server.seen]
    assert targets == ["AmazonSQS.SendMessage", "AmazonSQS.ReceiveMessage", "AmazonSQS.DeleteMessageBatch"]
    bodies = [json.loads(body) for *_, body in server.seen]
    assert bodies[0] == {"QueueUrl": "https://queue", "MessageBody": '{"kind": "hello"}'}
    assert bodies[2]["Entries"] == [{"Id": "0", "ReceiptHandle": "r"}]


def test_hellos_that_wait_in_the_queue_are_received_together(server, client):
    queue, full = Queue(client, "https://queue"), [{"Body": "b", "ReceiptHandle": "r"}] * 10
    server.answers += [(200, json.dumps({"Messages": batch})) for batch in (full, full, full[:4])]
    messages = queue.receive(5)
    queue.delete(messages)
    bodies = [json.loads(body) for *_, body in server.seen]
    assert [body["WaitTimeSeconds"] for body in bodies[:3]] == [5, 0, 0]
    assert [len(body["Entries"]) for body in bodies[3:]] == [10, 10, 4]


def test_the_table_speaks_in_plain_values(server, client):
    table = Table(client, "roster")
    table.epoch = "000001 i-1"
    table.put("generation", number=3, head="i-1", ready=True)
    sent = json.loads(server.seen[0][3])
    item = sent["Item"]
    expected = {"item": {"S": "generation"}, "number": {"N": "3"}, "head": {"S": "i-1"}, "ready": {"BOOL": True}}
    assert item == {**expected, "epoch": {"S": "000001 i-1"}}
    assert sent["ConditionExpression"] == "attribute_not_exists(epoch) OR epoch <= :e"
    del item["epoch"]
    server.answers += [(200, json.dumps({"Item": item})), (200, "{}")]
    assert table.get("generation") == {"item": "generation", "number": 3, "head": "i-1", "ready": True}
    assert table.get("nothing") == {}


def test_items_that_are_read_together_come_in_the_order_of_the_question(server, client):
    items = [{"item": {"S": "node#i-1"}, "generation": {"N": "3"}}, {"item": {"S": "roster"}, "generation": {"N": "2"}}]
    server.answers += [(200, json.dumps({"Responses": {"table": items}, "UnprocessedKeys": {}}))]
    read = Table(client, "table").get_together("roster", "nothing", "node#i-1")
    assert [item.get("generation") for item in read] == [2, None, 3]
    _, _, headers, body = server.seen[0]
    assert headers["X-Amz-Target"] == "DynamoDB_20120810.BatchGetItem"
    keys = [{"item": {"S": name}} for name in ("roster", "nothing", "node#i-1")]
    assert json.loads(body) == {"RequestItems": {"table": {"Keys": keys}}}


def test_a_head_that_was_deposed_ends(server, client):
    server.answers += [an_error("ConditionalCheckFailedException")]
    with pytest.raises(SystemExit, match="another machine is head"):
        Table(client, "roster").put("roster", generation=3)


GROUP = """<R xmlns="http://autoscaling.amazonaws.com/doc/2011-01-01/"><AutoScalingGroups><member>
<DesiredCapacity>3</DesiredCapacity><Instances>
<member><InstanceId>i-1</InstanceId><LifecycleState>InService</LifecycleState></member>
<member><InstanceId>i-2</InstanceId><LifecycleState>Terminating:Wait</LifecycleState></member>
<member><InstanceId>i-3</InstanceId><LifecycleState>Pending</LifecycleState></member>
</Instances></member></AutoScalingGroups></R>"""
ACTIVITIES = """<R xmlns="http://autoscaling.amazonaws.com/doc/2011-01-01/"><Activities>
<member><StatusCode>Failed</StatusCode><StatusMessage>No capacity.</StatusMessage><Cause>from 2 to 3</Cause></member>
<member><StatusCode>Successful</StatusCode><Cause>x</Cause></member>
<member><StatusCode>Cancelled</StatusCode><Description>Launching.</Description><Cause>from 0 to 3</Cause></member>
</Activities></R>"""


def test_the_fleet_is_read_with_its_refusals(server, client):
    server.answers += [(200, GROUP), (200, ACTIVITIES)]
    reading = Fleet(client, "demo-workers").read()
    # Refusals before the last successful launch no longer matter.
    assert reading == Reading(("i-1", "i-3"), (Refusal("from 2 to 3", "No capacity."),))


def test_a_full_fleet_has_no_need_to_explain(server, client):
    server.answers += [(200, GROUP.replace(">3<", ">2<"))]
    assert Fleet(client, "demo-workers").read() == Reading(("i-1", "i-3"), ())
    assert len(server.seen) == 1


INSTANCES = """<R xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><reservationSet><item><instancesSet>
<item><instanceId>i-1</instanceId><instanceState><name>running</name></instanceState>
<privateIpAddress>10.0.0.4</privateIpAddress></item>
<item><instanceId>i-2</instanceId><instanceState><name>shutting-down</name></instanceState>
<privateIpAddress>10.0.0.5</privateIpAddress></item>
<item><instanceId>i-3</instanceId><instanceState><name>terminated</name></instanceState></item>
</instancesSet></item></reservationSet></R>"""


def test_instances_have_addresses_until_they_end_and_ec2_reports_their_ends(server, client):
    server.answers += [(200, INSTANCES)] * 2
    fleet, asked = Fleet(client, "demo-workers"), ["i-1", "i-2", "i-3", "i-4"]
    assert fleet.addresses(asked) == {"i-1": "10.0.0.4", "i-2": "10.0.0.5"}
    assert fleet.ended(asked) == {"i-2", "i-3"}
    assert b"Filter.1.Value.4=i-4" in server.seen[1][3]


def test_an_instance_that_is_gone_is_terminated_already(server, client):
    """It is the only call: workers, which end a lost head, may do nothing else in EC2."""
    server.answers += [(400, "<R><Error><Code>ValidationError</Code><Message>unknown</Message></Error></R>")]
    Fleet(client, "demo-workers").terminate("i-9", replaced=False)
    assert [b"Action=TerminateInstanceInAutoScalingGroup" in body for *_, body in server.seen] == [True]


@pytest.mark.parametrize(
    "code", ["UnauthorizedOperation", "InvalidInstanceID.NotFound", "InvalidAllocationID.NotFound"]
)
def test_the_head_takes_its_address_as_soon_as_ec2_lets_it(server, client, code):
    not_yet = f"<Response><Errors><Error><Code>{code}</Code><Message>m</Message></Error></Errors></Response>"
    server.answers += [(403, not_yet), (400, not_yet), (200, "<R/>")]
    Fleet(client, "demo-workers").take_address("eipalloc-1", "i-1")
    asked = [body.decode().split("&") for *_, body in server.seen]
    wanted = {"Action=AssociateAddress", "AllocationId=eipalloc-1", "InstanceId=i-1", "AllowReassociation=true"}
    assert len(asked) == 3 and all(wanted <= set(one) for one in asked)


def test_forgotten_connections_are_opened_again(server, client):
    client.json("sqs", "AmazonSQS.SendMessage", {})
    wire.forget()
    client.json("sqs", "AmazonSQS.SendMessage", {})
    assert len(server.connections) == 2


def test_a_log_stream_may_exist_already(server, client):
    server.answers += [an_error("ResourceAlreadyExistsException")]
    LogStream(client, "g", "i-1").put([(1, "line"), (2, "")])
    assert json.loads(server.seen[1][3])["logEvents"][1] == {"timestamp": 2, "message": " "}


def test_metadata_is_asked_with_a_token_and_identity_and_keys_are_kept(server, monkeypatch):
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", server.url)
    known = {"instanceId": "i-1", "privateIp": "10.0.0.4", "availabilityZone": "us-east-1a", "instanceType": "c5.large"}
    server.answers += [(200, "TOKEN"), (200, json.dumps(known)), (200, "role"), (200, json.dumps(ROLE_KEYS))]
    metadata = Metadata()
    assert metadata.identity().zone == "us-east-1a"
    assert metadata.identity() is metadata.identity()
    assert metadata.credentials() is metadata.credentials()
    method, path, *_ = server.seen[0]
    assert (method, path) == ("PUT", "/latest/api/token")
    assert all(h["X-aws-ec2-metadata-token"] == "TOKEN" for _, _, h, _ in server.seen[1:])
    assert len(server.seen) == 4


ROLE_KEYS = {"Code": "Success", "AccessKeyId": "A", "SecretAccessKey": "s", "Token": "t", "Expiration": "2099"}


@pytest.mark.parametrize(
    "not_yet",
    [
        [(404, "")],
        [(429, "slow down")],
        [(200, "")],
        [(200, "role"), (404, "")],
        [(200, "role"), (200, json.dumps({"Code": "AssumeRoleUnauthorizedAccess", "Message": "not yet"}))],
        [(200, "role"), (200, "<html>busy</html>")],
        [(401, ""), (200, "ANOTHER")],
    ],
    ids=["no role", "throttled", "empty", "no credentials", "no success", "no JSON", "the token is invalid"],
)
def test_an_answer_of_the_metadata_service_that_is_not_good_yet_is_not_final(server, monkeypatch, not_yet):
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", server.url)
    server.answers += [(403, ""), (200, "TOKEN"), *not_yet, (200, "role"), (200, json.dumps(ROLE_KEYS))]
    assert Metadata().credentials().access_key_id == "A"


def test_the_last_answer_of_the_metadata_service_is_in_the_error(server, monkeypatch):
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", server.url)
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr(wire.time, "monotonic", lambda: next(clock))
    refused = json.dumps({"Code": "AssumeRoleUnauthorizedAccess", "Message": "EC2 cannot assume the role."})
    server.answers += [(200, "TOKEN"), *[(200, "role"), (200, refused)] * 10]
    with pytest.raises(OSError, match="EC2 cannot assume the role"):
        Metadata().credentials()


def test_the_signal_has_no_content_type_and_keeps_the_limit(server):
    outcome.signal(f"{server.url}/bucket/arn%3Aaws?X-Amz-Signature=a%2Bb", "FAILURE", "é" * 5000, ON_AWS)
    method, path, headers, body = server.seen[0]
    assert (method, path) == ("PUT", "/bucket/arn%3Aaws?X-Amz-Signature=a%2Bb")
    assert "Content-Type" not in headers
    signal = json.loads(body)
    assert signal["Status"] == "FAILURE" and len(signal["Reason"].encode()) <= 4096


def test_a_broken_answer_is_no_crash(server):
    server.answers += [(200, "x")]
    assert wire.fetch(Request("GET", server.url, {}), 5) == b"x"
    with pytest.raises(OSError, match="what"):
        wire.insist(lambda: wire.fetch(Request("GET", "http://127.0.0.1:9", {}), 1), -1, 1, "what")
