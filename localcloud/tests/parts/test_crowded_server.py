"""The local cloud's API with many connections and large bodies at once, of nodes and of this machine's user."""

from __future__ import annotations

import http.client
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress

import pytest

from localcloud.api.http import HttpServer

CONTENT = "AWS4-HMAC-SHA256 Credential=AKIA/20260101/us-east-1/s3/aws4_request, SignedHeaders=a, Signature=b"
NODE, OTHER_NODE = "127.0.0.2", "127.0.0.3"


def lengths(environ, start_response):
    start_response("200 OK", [])
    return [b"%d" % len(environ["wsgi.input"].read())]


@pytest.fixture
def served():
    """Where a server listens: in a VPC, and for this machine."""
    server = HttpServer(lengths, of_user := socket.create_server(("127.0.0.1", 0)))
    server.attach(of_vpc := socket.create_server(("127.0.0.1", 0)), "vpc-1")
    yield of_vpc.getsockname(), of_user.getsockname()
    server.close()


def put(door, node, body, path="/bucket/key?partNumber=1&uploadId=2", **headers):
    """Send a body from a node; return the status and the headers and content of the answer."""
    connection = http.client.HTTPConnection(*door, timeout=60, source_address=(node, 0))
    with closing(connection):
        connection.request("PUT", path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()


def test_many_large_parts_of_one_node_at_once_wait_for_each_other_and_all_arrive(served):
    door, _ = served
    part = bytes(16 << 20)
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda _: put(door, NODE, part, Authorization=CONTENT), range(24)))
    assert {(status, content) for status, _, content in answers} == {(200, b"16777216")}


@pytest.mark.parametrize(
    ("authorization", "path"),
    [
        (CONTENT.replace("/s3/", "/lambda/"), "/bucket/key"),
        (CONTENT.replace("/s3/", "/lambda/") + "/s3/aws4_request,", "/bucket/key"),
        ("", "/bucket/key"),
        (CONTENT, "/bucket"),
        (CONTENT, "/bucket/"),
        (CONTENT, "/bucket/key?tagging"),
        (CONTENT, "/bucket/key?partNumber=1&tagging"),
        # In no more time than others.
        (CONTENT, f"/bucket/key?{'x-id=' * 1000}&tagging"),
    ],
)
def test_a_document_that_would_take_too_much_memory_is_refused(served, authorization, path):
    door, _ = served
    assert put(door, NODE, bytes(2 << 20), path, Authorization=authorization)[0] == 200
    # Some clients are still sending when the answer comes.
    with suppress(ConnectionError):
        assert put(door, NODE, bytes((2 << 20) + 1), path, Authorization=authorization)[0] == 413


def test_a_node_with_all_the_connections_that_it_may_have_shuts_nobody_else_out(served):
    door, door_of_user = served
    with ExitStack() as held:
        for _ in range(128):
            held.enter_context(socket.create_connection(door, timeout=60, source_address=(NODE, 0)))
        status, headers, _ = put(door, NODE, b"")
        assert (status, headers["Retry-After"]) == (503, "1")
        assert put(door, OTHER_NODE, b"1")[0] == 200
        assert put(door_of_user, NODE, b"1")[0] == 200
    # They end when their threads have seen that.
    statuses = iter(lambda: put(door, NODE, b"1")[0], 200)
    assert set(statuses) <= {503}


def test_a_body_in_chunks_of_any_length_is_not_read(served):
    door, _ = served
    with socket.create_connection(door, timeout=30) as client:
        client.sendall(b"PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 1000)
        with client.makefile("rb") as answer:
            assert answer.read().endswith(b"\r\n\r\n1\r\n0\r\n0\r\n\r\n")
