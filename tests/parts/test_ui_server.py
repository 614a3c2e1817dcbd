"""`phalanx ui` as it listens: where, to whom it answers, and what its streams carry."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from error_codes import raises_code
from ui_queries import JOB, MadeQueries

from phalanx.ui.server import Page

LOG = f"/api/clusters/demo/jobs/{JOB}/log"
ENDLESS = "import itertools, time\nfor n in itertools.count(): print(n, flush=True); time.sleep(0.01)"
# Runs as another user, who knows even the page's random name.
OTHER = """
import encodings.idna, http.client, os, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
host, port, path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
for address in ("127.0.0.1", "::1"):
    for name in (host, f"127.0.0.1:{port}"):
        there = http.client.HTTPConnection(address, port, timeout=30)
        there.request("GET", path, headers={"Host": name})
        print(there.getresponse().status)
"""


class Served:
    """A page that is served, and its user's requests."""

    def __init__(self, made: MadeQueries) -> None:
        self.page, self._open = Page(made), list[http.client.HTTPConnection | http.client.HTTPResponse]()
        ready = threading.Event()
        self._thread = threading.Thread(target=self.page.serve, args=(lambda _: ready.set(),))
        self._thread.start()
        assert ready.wait(30)
        self.there = urlsplit(self.page.door.origin)
        key = self.page.door.link.partition("#")[2]
        answer = self.request("POST", "/enter", Origin=self.page.door.origin, **{"X-Phalanx-Key": key})
        self.cookie = answer.headers["Set-Cookie"].partition(";")[0]

    def request(self, method: str, path: str, **headers: str) -> http.client.HTTPResponse:
        # It listens before it is served.
        connection = http.client.HTTPConnection("127.0.0.1", self.there.port, timeout=60)
        connection.request(method, path, headers={"Host": self.there.netloc, **headers})
        answer = connection.getresponse()
        self._open += [answer, connection]
        return answer

    def get(self, path: str) -> http.client.HTTPResponse:
        return self.request("GET", path, Cookie=self.cookie)

    def hang_up(self) -> None:
        for one in self._open:
            one.close()

    def end(self) -> None:
        self.page.end()
        self._thread.join(60)
        self.hang_up()
        assert not self._thread.is_alive()


@pytest.fixture
def made() -> MadeQueries:
    return MadeQueries(output=ENDLESS)


@pytest.fixture
def served(made) -> Iterator[Served]:
    found = Served(made)
    yield found
    found.end()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user for a moment")
@pytest.mark.parametrize("path", ["/", "/api/clusters", LOG])
def test_another_user_of_the_machine_gets_no_answer(served, path):
    argv = [sys.executable, "-I", "-c", OTHER, served.there.netloc, str(served.there.port), path]
    got = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert got.stdout.split() == ["403", "421"] * 2, got.stderr


def test_nobody_but_this_machine_reaches_it(served):
    outside = [info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)]
    for address in {str(address) for address in outside if not str(address).startswith("127.")}:
        with socket.socket() as probe, pytest.raises(OSError):
            probe.settimeout(2)
            probe.connect((address, served.there.port))


def test_a_port_that_is_taken_is_reported(served):
    with raises_code("port-taken"):
        Page(MadeQueries(), served.there.port)


def test_a_line_comes_within_a_moment_and_the_stream_s_process_ends_with_the_page(served):
    answer = served.get(LOG)
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    while b"event: lines" not in answer.readline():
        pass
    assert b'"1"' in answer.readline()
    found = [path.name for path in Path("/proc").iterdir() if path.name.isdigit() and _runs(path.name)]
    assert len(found) == 1
    served.hang_up()
    deadline = time.monotonic() + 30
    while any(map(_runs, found)):
        assert time.monotonic() < deadline, "the process of a page that is closed still runs"
        time.sleep(0.05)


def _runs(pid: str) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return b"itertools.count" in file.read()
    except OSError:
        return False


def test_streams_that_nobody_closes_do_not_keep_the_server(made, caplog):
    served = Served(made)
    for _ in range(3):
        served.get(LOG).readline()
    served.end()
    assert caplog.text == ""


def test_only_so_many_logs_are_open(served):
    for _ in range(16):
        served.get(LOG).readline()
    assert served.get(LOG).status == 503
    assert served.get("/api/clusters").status == 200


def test_a_download_has_every_line(served, made):
    made.output = "for n in range(100_000): print(n)"
    answer = served.get(f"{LOG}.txt")
    assert answer.headers["Content-Disposition"] == f'attachment; filename="{JOB}.txt"'
    assert answer.read().split() == [b"%d" % n for n in range(100_000)]


def test_why_a_log_is_not_shown_is_said(served, made):
    made.output = "import sys; print('waiting for x\\nerror: the cluster is gone\\n`phalanx up`', file=sys.stderr)"
    text = served.get(LOG).read().decode()
    assert text.endswith('event: end\ndata: {"error": "the cluster is gone"}\n\n')
