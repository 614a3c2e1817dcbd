"""Programs on the head that live as long as their connection, with a fake head on this machine."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest
from error_codes import raises_code
from fake_nodes import FakeCluster
from ports import free_port

from phalanx.errors import ClusterError
from phalanx.jobs.job import Job
from phalanx.jobs.tunnel import Program, Service, answers, forward, notebook, require_free, tensorboard

HOST = "demo.localhost"
SERVER = f"""#!{sys.executable}
import http.server, os, subprocess, sys
subprocess.Popen(["setsid", "env", "-i", "sleep", "4713"])
class Token(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(os.environ["TOKEN"].encode())
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Token).serve_forever()
"""


@pytest.fixture
def cluster(tmp_path):
    cluster = FakeCluster(tmp_path)
    add(cluster, "server", SERVER)
    return cluster


@pytest.fixture
def service(cluster):
    service = Service(cluster, Program("server", ("server", "{port}"), "server", {"TOKEN": "swordfish"}))
    yield service
    service.close()


def add(cluster, name, text):
    path = cluster.root / "bin" / name
    path.write_text(text)
    path.chmod(0o755)


def sleepers() -> str:
    return subprocess.run(["pgrep", "-f", "^sleep 4713"], capture_output=True, text=True).stdout


def test_it_answers_on_a_port_and_ends_with_all_that_it_started(service):
    port = service.start()
    assert urllib.request.urlopen(f"http://127.0.0.1:{port}", timeout=120).read() == b"swordfish"
    assert sleepers()
    arguments = b"".join(p.read_bytes() for p in Path("/proc").glob(f"{service._process.pid}/cmdline"))
    assert b"swordfish" not in arguments
    assert not service.ended()
    ended = service.end()
    assert (ended.status, ended.left) == (None, ())
    assert not sleepers()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=1)


def test_it_ends_when_its_holder_is_gone(service):
    service.start()
    # As ssh does when the process at its other end was killed.
    service._process.stdin.close()
    deadline = time.monotonic() + 120
    while sleepers() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not sleepers()


def test_a_missing_program_is_reported_with_how_to_install_it(cluster):
    missing = Service(cluster, tensorboard("/efs"))
    with raises_code("no-program", "'tensorboard'") as caught:
        missing.start()
    missing.close()
    assert "Put `tensorboard`" in caught.value.hint


def in_job(cluster, program: Program, result: str) -> Service:
    """In the environment of a job that left this as what is known of it."""
    job = Job(cluster, "261121-0001")
    Path(job.directory).mkdir(parents=True)
    Path(job.directory, "environment.json").write_text(result)
    return Service(cluster, program, job)


def test_a_program_comes_from_the_environment_of_the_job(cluster):
    environment = cluster.root / "environment"
    (environment / "bin").mkdir(parents=True)
    (environment / ".complete").touch()
    add(cluster, "../environment/bin/only-there", SERVER)
    program = Program("server", ("only-there", "{port}"), "only-there", {"TOKEN": "found"})
    service = in_job(cluster, program, json.dumps({"path": str(environment), "kept": str(environment)}))
    try:
        assert urllib.request.urlopen(f"http://127.0.0.1:{service.start()}", timeout=120).read() == b"found"
        service.end()
    finally:
        service.close()


@pytest.mark.parametrize("result", ["", "[]", '{"path": 1}', '{"path": "/nowhere/at/all"}', '{"problem": "no pip"}'])
def test_an_environment_that_is_none_hides_no_program(cluster, result):
    service = in_job(cluster, Program("server", ("server", "{port}"), "server", {"TOKEN": "found"}), result)
    try:
        assert service.start()
        service.end()
    finally:
        service.close()


def test_a_program_that_fails_is_reported_with_its_last_lines(cluster):
    add(cluster, "jupyter", "#!/bin/sh\necho no such extension: $*; exit 5\n")
    failing = Service(cluster, notebook("/efs", "token", HOST))
    with raises_code("not-started", "no such extension", "--ServerApp.ip=127.0.0.1"):
        failing.start()
    failing.close()


def test_a_port_that_is_taken_is_reported(cluster):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with raises_code("port-taken", port) as caught:
            require_free(port)
        assert "phalanx forward 18888:8888" in caught.value.hint


class FakeForward:
    host = "deeplearning-master"

    def __init__(self, script):
        self._script = script

    def forward(self, path, port, shown):
        pipe = subprocess.PIPE
        return subprocess.Popen(["sh", "-c", self._script], stdin=pipe, stdout=pipe, stderr=shown)


def test_a_port_that_nothing_listens_on_is_noticed_through_ssh():
    with socket.create_server(("127.0.0.1", 0)) as listens:
        assert answers(listens.getsockname()[1], within_s=0.2)
    with socket.create_server(("127.0.0.1", 0)) as ssh:
        # As ssh does when the node refuses: it takes the connection, and closes it.
        closing = threading.Thread(target=lambda: ssh.accept()[0].close())
        closing.start()
        assert not answers(ssh.getsockname()[1], within_s=30)
        closing.join()


def test_a_forward_that_ssh_refuses_is_reported_with_sshs_message():
    refused = FakeForward("echo 'bind: Cannot assign requested address' >&2; exit 255")
    with pytest.raises(ClusterError, match="Cannot assign requested address"), forward(refused, free_port(), 1, HOST):
        pass


def test_a_forward_ends_with_its_block():
    with forward(FakeForward("echo ready; exec cat"), free_port(), 1, HOST) as connection:
        assert connection.poll() is None
    assert connection.poll() is not None
