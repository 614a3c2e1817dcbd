"""YARN against a server that answers as Hadoop documents its ResourceManager's REST API. No Hadoop runs here."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar

import pytest

from phalanx.node.process import RefusedError
from phalanx.node.runner.scheduling import ENDED, QUEUED, Request, shown
from phalanx.schedulers import yarn


class FakeResourceManager(BaseHTTPRequestHandler):
    """Answers as Hadoop's documentation of the ResourceManager's REST API does."""

    asked: ClassVar[list[tuple[str, str, dict]]] = []
    state = "ACCEPTED"

    def do_POST(self) -> None:
        body = self.body()
        path = self.path.partition("?")[0]
        if path.endswith("/new-application"):
            self.answer(200, {"application-id": "application_1_0001", "maximum-resource-capability": {"memory": 8192}})
        elif body.get("queue") == "nosuch":
            text = "Application application_1_0001 submitted by user phalanx to unknown queue: nosuch"
            self.answer(400, {"RemoteException": {"exception": "YarnException", "message": text}})
        else:
            self.answer(202, None)

    def do_GET(self) -> None:
        self.body()
        self.answer(200, {"app": {"id": "application_1_0001", "state": self.state, "diagnostics": "in the queue"}})

    def do_PUT(self) -> None:
        type(self).state = self.body()["state"]
        self.answer(202, {"state": "ACCEPTED"})

    def body(self) -> dict:
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = json.loads(data) if data else {}
        self.asked.append((self.command, self.path, body))
        return body

    def answer(self, code: int, body: dict | None) -> None:
        data = json.dumps(body).encode() if body else b""
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def manager() -> Iterator[str]:
    FakeResourceManager.asked.clear()
    FakeResourceManager.state = "ACCEPTED"
    server = HTTPServer(("127.0.0.1", 0), FakeResourceManager)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def no_command(argv: Sequence[str], text: str) -> str:
    raise AssertionError(f"YARN has no command: {argv}{text}")


def asking(manager: str, *more: str) -> Request:
    return Request("J1", "/efs/.phalanx/jobs/J1", "yarn", 6, 3, 2, options=("--rm", manager, *more))


def test_yarn_is_asked_for_a_distributed_shell_with_a_container_for_each_node(manager):
    allocation = yarn.submit(asking(manager), no_command)
    assert shown(allocation) == "application_1_0001"
    assert yarn.look(allocation, no_command).phase == QUEUED
    _, _, body = FakeResourceManager.asked[1]
    command = body["am-container-spec"]["commands"]["command"]
    assert "--num_containers 3" in command and "--container_vcores 2" in command
    assert "attend yarn" in command and "application_1_0001 3 2" in command
    yarn.cancel(allocation, no_command)
    found = yarn.look(allocation, no_command)
    assert (found.phase, found.killed) == (ENDED, True)


def test_what_yarn_refuses_is_told_in_its_own_words(manager):
    with pytest.raises(RefusedError, match="unknown queue: nosuch"):
        yarn.submit(asking(manager, "--queue", "nosuch"), no_command)
    with pytest.raises(RefusedError, match="--memory"):
        yarn.submit(asking(manager, "--nonsense", "1"), no_command)


def test_a_resource_manager_that_is_not_there_is_named():
    with pytest.raises(RefusedError, match=r"does not answer at http://127\.0\.0\.1:9"):
        yarn.submit(asking("http://127.0.0.1:9"), no_command)
    with pytest.raises(RefusedError, match="does not answer at nonsense"):
        yarn.submit(asking("nonsense"), no_command)


def test_another_server_than_yarns_is_told(manager, monkeypatch):
    monkeypatch.setattr(FakeResourceManager, "answer", lambda handler, *_: handler.wfile.write(b"SSH-2.0\r\n"))
    with pytest.raises(RefusedError, match="does not answer"):
        yarn.look(f"{manager}/ws/v1/cluster/apps/application_1_0001", no_command)


def test_an_answer_without_what_was_asked_for_is_told(monkeypatch):
    for answer in ({}, {"app": {}}, {"app": None}, []):
        monkeypatch.setattr(yarn, "_ask", lambda *_, answer=answer: answer)
        with pytest.raises(RefusedError, match="in what it says"):
            yarn.look("http://rm:8088/ws/v1/cluster/apps/application_1_0001", no_command)
