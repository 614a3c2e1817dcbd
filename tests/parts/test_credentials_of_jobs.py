"""The agent's door for jobs that want credentials, when this machine has no thread left for a moment."""

from __future__ import annotations

import http.client
import os
import threading
from types import SimpleNamespace
from typing import Any

from ports import free_port

from phalanx.node import account, credentials
from phalanx.node.settings import ON_AWS


def test_it_answers_again_after_it_could_start_no_thread(tmp_path, monkeypatch):
    monkeypatch.setattr(account, "uid_of", lambda _: os.getuid())
    monkeypatch.setattr(credentials, "SOCKET", str(tmp_path / "sock"))
    monkeypatch.setattr(credentials, "PORT", free_port())
    settings: Any = SimpleNamespace(
        region="us-east-1", domain="amazonaws.com", job_user="phalanx", job_role="arn", patience=ON_AWS
    )
    metadata: Any = SimpleNamespace(credentials=None)
    credentials.serve(settings, metadata)
    start, refused = threading.Thread.start, list[threading.Thread]()

    def start_later(thread: threading.Thread) -> None:
        if len(refused) < 2:
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_later)
    answers = [asked() for _ in range(3)]
    assert len(refused) == 2
    assert answers == [0, 0, 401]


def asked() -> int:
    """Return the status of an answer; 0 if the connection was closed without one."""
    connection = http.client.HTTPConnection("127.0.0.1", credentials.PORT, timeout=10)
    try:
        connection.request("GET", "/", headers={"Authorization": "x"})
        return connection.getresponse().status
    except ConnectionError:
        return 0
