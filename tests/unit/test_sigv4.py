"""Our signatures against botocore's own signer, byte for byte."""

from __future__ import annotations

import datetime

import pytest
from botocore import auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotoCredentials
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.node.sigv4 import Credentials, Request, signed_headers

NOW = datetime.datetime(2026, 11, 21, 8, 0, 0)
KEYS = Credentials("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
WITH_TOKEN = Credentials("ASIAEXAMPLE", "secret/+=", "FwoGZXIvYXdzEJr//////////wEaDD+token==")

REQUESTS = {
    "query": Request(
        "POST",
        "https://autoscaling.us-east-1.amazonaws.com/",
        {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"},
        b"Action=DescribeAutoScalingGroups&Version=2011-01-01",
    ),
    "json": Request(
        "POST",
        "http://169.254.1.1:4566/",
        {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": "AmazonSQS.SendMessage"},
        '{"MessageBody":"héllo \u2603"}'.encode(),
    ),
    "get": Request("GET", "https://example.amazonaws.com/a/b?Param2=v2&Param1=v1&empty=", {}),
    "odd characters": Request("GET", "https://example.amazonaws.com/a%20b/~x/%E2%98%83?q=a%20b%2Bc%26d~e&Q=%2F", {}),
    "spaces in headers": Request("GET", "https://example.amazonaws.com", {"X-Amz-Meta": "  a   b  "}),
}


def boto_authorization(monkeypatch, request: Request, credentials: Credentials, service: str) -> str:
    moment = NOW.replace(tzinfo=datetime.timezone.utc)
    monkeypatch.setattr(auth, "get_current_datetime", lambda *_, **__: NOW, raising=False)
    stamp = moment.strftime("%Y%m%dT%H%M%SZ")
    theirs = AWSRequest(request.method, request.url, dict(request.headers), request.body or None)
    keys = BotoCredentials(credentials.access_key_id, credentials.secret_access_key, credentials.token)
    auth.SigV4Auth(keys, service, "us-east-1").add_auth(theirs)
    assert theirs.context["timestamp"] == stamp
    return theirs.headers["Authorization"]


@pytest.mark.parametrize("credentials", [KEYS, WITH_TOKEN], ids=["user", "role"])
@pytest.mark.parametrize("name", REQUESTS)
def test_the_signature_is_botocores(monkeypatch, name, credentials):
    request = REQUESTS[name]
    ours = signed_headers(request, credentials, "us-east-1", "sqs", "20261121T080000Z")
    assert ours["Authorization"] == boto_authorization(monkeypatch, request, credentials, "sqs")
    assert ours.get("X-Amz-Security-Token") == credentials.token


@settings(max_examples=30, deadline=None)
@given(body=st.binary(max_size=200), secret=st.text(min_size=1, max_size=40))
def test_any_body_and_secret(body, secret):
    with pytest.MonkeyPatch.context() as monkeypatch:
        request = Request("POST", "http://127.0.0.1:4566/", {"X-Amz-Target": "DynamoDB_20120810.GetItem"}, body)
        credentials = Credentials("AKID", secret)
        ours = signed_headers(request, credentials, "us-east-1", "dynamodb", "20261121T080000Z")
        assert ours["Authorization"] == boto_authorization(monkeypatch, request, credentials, "dynamodb")


def test_secrets_are_not_shown():
    assert "secret" not in repr(WITH_TOKEN)
