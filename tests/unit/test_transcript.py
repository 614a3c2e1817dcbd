"""The transcript of API calls, and what it must not contain."""

from __future__ import annotations

import json

import pytest
from boto3.session import Session
from botocore.awsrequest import AWSResponse
from botocore.config import Config
from botocore.exceptions import ClientError
from error_codes import raises_code

from phalanx.aws import transcript

SECRETS = {
    "an access key": ("AKIAIOSFODNN7EXAMPLE is not known", "<key id> is not known"),
    "an account": ("arn:aws:sns:us-east-1:123456789012:x", "arn:aws:sns:us-east-1:<account>:x"),
    "a user": ("User: arn:aws:iam::123456789012:user/ann is", "User: arn:aws:iam::<account>:user/<user> is"),
    "a signed-in user": ("arn:aws:sts::1:assumed-role/R/ann@x.org,", "arn:aws:sts::1:assumed-role/R/<user>,"),
    "a public address": ("to 52.94.236.248:22 and [2600:1f18::1]", "to <address>:22 and [<address>]"),
    "an address at the end": ("no route to 52.94.236.248.", "no route to <address>."),
    "a public host name": ("ec2-52-94-236-248.compute-1.amazonaws.com", "<address>.compute-1.amazonaws.com"),
    "a public key": (f"ssh-ed25519 AAAA{'c' * 40} ann@laptop", "ssh-ed25519 <key>"),
    "a private key": ("-----BEGIN OPENSSH PRIVATE KEY-----\nb3\n-----END OPENSSH PRIVATE KEY-----\nx", "<key>\nx"),
    "a cut private key": ("-----BEGIN RSA PRIVATE KEY-----\nb3Blb", "<key>"),
    "a fingerprint": (f"ED25519 key SHA256:{'x' * 43}", "ED25519 key <fingerprint>"),
    "a signed URL": (
        "https://b/k?X-Amz-Signature=abc&X-Amz-Credential=me/1",
        "https://b/k?X-Amz-Signature=<secret>&X-Amz-Credential=<secret>",
    ),
    "an e-mail address": ("contact ann.b@example.org", "contact <e-mail>"),
    "an address in capitals": ("contact ANN@EXAMPLE.ORG.", "contact <e-mail>."),
    "an address in a URL": ("?from=ann%40example.org&x", "?from=<e-mail>&x"),
    "an account at the end": ("not in account 123456789012.", "not in account <account>."),
    "an account in a host name": (
        "123456789012.dkr.ecr.us-east-1.amazonaws.com",
        "<account>.dkr.ecr.us-east-1.amazonaws.com",
    ),
    "an account in a bucket": (
        "s3://aws_logs_123456789012_cafe-123456789012",
        "s3://aws_logs_<account>_cafe-<account>",
    ),
    "an account as the console shows it": ("account 1234-5678-9012 is", "account <account> is"),
    "a user's second factor": ("arn:aws:iam::1:mfa/ann-phone", "arn:aws:iam::1:mfa/<user>"),
    "a session named like an instance": (":assumed-role/R/i-abc-ann", ":assumed-role/R/<user>"),
    "a comment of a public key": (f"ssh-rsa AAAA{'c' * 40}== ann", "ssh-rsa <key>"),
    "a key in a message": (f"accepts AAAA{'c' * 40} and no other", "accepts <key> and no other"),
    "a secret key": ("aws_secret_access_key = wJalrXUtnFEMI/K7MDENG", "aws_secret_access_key = <secret>"),
    "credentials as JSON": (
        '{"SecretAccessKey": "wJalr/x", "Token": "FwoG+/y"}',
        '{"SecretAccessKey": "<secret>", "Token": "<secret>"}',
    ),
    "credentials as XML": ("<SecretAccessKey>wJalr</SecretAccessKey>", "<SecretAccessKey><secret></SecretAccessKey>"),
    "a header": ("X-Amz-Security-Token: FwoGZXIvYXdzEBY", "X-Amz-Security-Token: <secret>"),
    "a variable": ("AWS_SESSION_TOKEN='FwoGZX' aws", "AWS_SESSION_TOKEN='<secret>' aws"),
    "a mirror's password": (
        "PIP_INDEX_URL=https://ann:s3cret@pypi.example.org/simple",
        "PIP_INDEX_URL=https://<secret>@pypi.example.org/simple",
    ),
    "a mapped address": ("from ::ffff:52.94.236.248 port 22", "from <address> port 22"),
    "a name of an address": ("248.236.94.52.in-addr.arpa", "<address>.in-addr.arpa"),
}
KEPT = (
    "node 10.0.128.7 (i-0123456789abcdef0) at 12:31:50",
    "arn:aws:sts::1:assumed-role/smoke-WorkerRole/i-0123456789abcdef0",
    "06:1a:2b:3c:4d:5e chacha20-poly1305@openssh.com",
    "vpc 10.0.0.0/16, everyone 0.0.0.0/0, 169.254.169.254, example 203.0.113.7/32",
    "e30a6de6-9d04-4b2a-9d3f-123456789012",
    "e30a6de6-9d04-4b2a-9d3f-123456789012/e30a6de6-1234-5678-9012-e30a6de69d04",
    "took 0.123456789012 s at 1766000000123, NextToken: none left, the token has expired",
    "https://pypi.org:443/simple",
)


@pytest.mark.parametrize(("before", "after"), SECRETS.values(), ids=SECRETS)
def test_what_must_not_be_shown_is_replaced(before, after):
    assert transcript.redacted(before) == after


@pytest.mark.parametrize("message", KEPT)
def test_what_explains_a_failure_is_kept(message):
    assert transcript.redacted(message) == message


def test_the_users_own_directory_is_not_shown(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ann")
    assert transcript.redacted("in /home/ann, /home/ann/x and /home/annex") == "in ~, ~/x and /home/annex"


def test_parameters_lose_secrets_by_name_and_long_texts():
    before = {"StackName": "demo", "NextToken": "x", "TemplateBody": "t" * 501, "Tags": [{"Key": "k", "Value": 1}]}
    after = transcript.redacted_parameters(before)
    assert after["StackName"] == "demo"
    assert after["NextToken"] == "<secret>"
    assert after["TemplateBody"].startswith("<501 bytes, SHA-256 ")
    assert after["Tags"] == [{"Key": "k", "Value": 1}]


@pytest.fixture
def log(tmp_path, monkeypatch):
    path = tmp_path / "calls.jsonl"
    monkeypatch.setenv(transcript.VARIABLE, str(path))
    return path


def a_client(answers):
    """Return a client whose requests get these answers, each a status and a JSON body, from no network."""
    keys = {"aws_access_key_id": "AKIAIOSFODNN7EXAMPLE", "aws_secret_access_key": "very-secret"}
    retries = Config(retries={"mode": "standard", "max_attempts": len(answers)})
    client = Session(**keys, region_name="us-east-1").client("dynamodb", config=retries)
    left = iter(answers)

    def answer(request, **_):
        status, body = next(left)
        headers = {"x-amzn-RequestId": f"request-{status}"}
        raw = type("Raw", (), {"stream": lambda self: iter([json.dumps(body).encode()])})()
        return AWSResponse(request.url, status, headers, raw)

    client.meta.events.register("before-send", answer)
    transcript.attach(client)
    return client


def test_each_attempt_of_a_call_is_a_line(log, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda _: None)
    throttled = {"__type": "ThrottlingException", "message": "Rate exceeded for 123456789012"}
    a_client([(400, throttled), (200, {"Item": {}})]).get_item(TableName="demo", Key={"item": {"S": "roster"}})
    first, second = map(json.loads, log.read_text().splitlines())
    assert first["call"] == second["call"] == "dynamodb:GetItem"
    assert (first["attempt"], first["status"], first["request_id"]) == (1, 400, "request-400")
    assert first["error"] == "ThrottlingException: Rate exceeded for <account>"
    assert (second["attempt"], second["status"], second["request_id"]) == (2, 200, "request-200")
    assert "error" not in second
    assert second["parameters"] == {"TableName": "demo", "Key": {"item": {"S": "roster"}}}
    assert second["took_s"] >= 0


def test_a_refused_call_is_in_the_transcript_and_its_keys_are_not(log):
    with pytest.raises(ClientError):
        a_client([(400, {"__type": "ValidationException", "message": "no"})]).describe_table(TableName="demo")
    assert json.loads(log.read_text())["error"] == "ValidationException: no"
    assert "very-secret" not in log.read_text()
    assert "AKIA" not in log.read_text()
    assert log.stat().st_mode & 0o777 == 0o600


def test_a_transcript_that_can_t_be_written_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv(transcript.VARIABLE, str(tmp_path / "missing" / "calls.jsonl"))
    with raises_code("cannot-write", "calls.jsonl", "No such file"):
        a_client([])


PLANTED = [
    *(before for before, _ in SECRETS.values()),
    *("ann's own words", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "acme-payroll", "52.94.236.248", "123456789012"),
]


def test_a_recorded_answer_contains_nothing_that_was_planted_in_it(log, monkeypatch):
    monkeypatch.setenv(transcript.WITH_ANSWERS, "1")
    names = [f"planted {number}" for number in range(len(PLANTED))]
    item = {name: {"S": text} for name, text in zip(names, PLANTED, strict=True)}
    table = {"TableStatus": "ACTIVE", "ItemCount": 7, "TableName": "acme-payroll", "TableArn": PLANTED[1]}
    odd = {"TableStatus": "wJalrXUtnFEMI/K7MDENG", "TableId": "", "DeletionProtectionEnabled": False}
    keys = {"acme-payroll 52.94.236.248": {"S": "x"}, "123456789012": {"S": "x"}, "generation": {"N": "1"}}
    client = a_client([(200, {"Item": {**item, **keys}}), (200, {"Table": table}), (200, {"Table": odd})])
    client.get_item(TableName="demo", Key={})
    client.describe_table(TableName="demo")
    client.describe_table(TableName="demo")
    items, active, strange = (json.loads(line)["answer"] for line in log.read_text().splitlines())
    assert items == {"Item": {"*": {"S": "<text>"}, "generation": {"N": "<text>"}}}
    assert active["Table"] == {"TableStatus": "ACTIVE", "ItemCount": 7, "TableName": "<text>", "TableArn": "<text>"}
    assert strange["Table"] == {"TableStatus": "<text>", "TableId": "", "DeletionProtectionEnabled": False}
    assert not [text for text in PLANTED if text in log.read_text()]


def test_an_answer_is_only_recorded_when_that_is_asked_for(log):
    a_client([(200, {"Item": {}})]).get_item(TableName="demo", Key={})
    assert "answer" not in json.loads(log.read_text())
