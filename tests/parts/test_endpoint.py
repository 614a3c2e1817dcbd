"""The local cloud's process seen from outside; a small HTTP server in this process stands in for it."""

from __future__ import annotations

import io
import json
import os
import shutil
import site
import socket
import subprocess
import sys
import threading
import time
from contextlib import redirect_stderr, redirect_stdout
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from botocore.exceptions import ClientError
from error_codes import raises_code

import localcloud
from localcloud.__main__ import main
from localcloud.daemon import endpoint_file, lifecycle
from phalanx.aws.aws import Aws
from phalanx.errors import CloudError, LocalCloudError
from phalanx.local import endpoint, isolated
from phalanx.local.this_machine import LocalAws, ThisMachine
from phalanx.spec.spec import ClusterSpec

STATUS = {"mode": "range", "stacks": [{"name": "demo", "status": "CREATE_COMPLETE"}], "nodes": [], "pids": []}


class Control(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(200 if self.headers["X-Localcloud-Key"] == "secret" else 403, STATUS)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body["force"]:
            self.answer(200, {"stacks": STATUS["stacks"]})
            (endpoint.state() / "endpoint.json").unlink()
            self.server.ended.kill()
            self.server.ended.wait()
        else:
            self.answer(409, {"message": "there are stacks", "stacks": STATUS["stacks"]})

    def answer(self, code, document):
        body = json.dumps(document).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("PHALANX_STATE_DIR", str(tmp_path / "state"))
    endpoint.state().mkdir(parents=True)


def record_of(url, pid, **fields):
    record = {"format": 1, "url": url, "pid": pid, "started_ticks": 0, "code": "of another version", "mode": "range"}
    record |= {"access_key_id": "AKIA", "secret_access_key": "secret", "dial": ["dial", "dial.sock"], "ssh_options": []}
    record |= {"state": "s", "accounts_separated": False, "warnings": ["w"], "no_cgroup": "", "open_networks": ""}
    return {**record, **endpoint_file.process_record(pid), "unknown": 1, **fields}


def write(url, pid, **fields):
    (endpoint.state() / "endpoint.json").write_text(json.dumps(record_of(url, pid, **fields)))


@pytest.fixture
def daemon():
    """A process that holds the local cloud's lock, with its record in it, and does nothing."""
    lock = endpoint.state() / "lock"
    code = f"import fcntl, time; lock = open({str(lock)!r}, 'a'); fcntl.flock(lock, fcntl.LOCK_EX); time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-IS", "-c", code])
    while not endpoint._is_locked():
        assert process.poll() is None
        time.sleep(0.005)
    lock.write_text(json.dumps(endpoint_file.process_record(process.pid)))
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def served(daemon):
    with ThreadingHTTPServer(("127.0.0.1", 0), Control) as server:
        server.ended = daemon
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        write(f"http://127.0.0.1:{server.server_port}", daemon.pid)
        yield server
        server.shutdown()
        thread.join()


def test_a_running_one_is_found_and_asked(served):
    found = endpoint.find()
    assert (found.mode, found.accounts_separated, found.warnings) == ("range", False, ("w",))
    assert endpoint.status()["stacks"][0]["name"] == "demo"


def test_none_is_found_without_a_record_or_with_that_of_a_dead_process(daemon):
    daemon.kill()
    daemon.wait()
    assert endpoint.find() is None
    write("http://127.0.0.1:9", daemon.pid)
    assert endpoint.find() is None
    with pytest.raises(endpoint.NotRunning):
        endpoint.running()


def test_one_that_lives_but_does_not_answer_is_reported_with_a_remedy(daemon):
    write("http://127.0.0.1:9", daemon.pid)
    with raises_code("local-cloud-silent", "phalanx local stop --force"):
        endpoint.find()


def test_it_does_not_stop_while_it_holds_clusters(served):
    with pytest.raises(endpoint.StacksLeft, match="still runs demo"):
        endpoint.stop()


def test_it_is_stopped_by_force_and_awaited(served, daemon):
    endpoint.stop(force=True)
    assert daemon.wait(120) is not None
    assert endpoint.find() is None


def test_one_that_does_not_answer_is_killed_by_force_alone(daemon):
    write("http://127.0.0.1:9", daemon.pid)
    with pytest.raises(LocalCloudError, match="--force"):
        endpoint.stop()
    threading.Timer(0.05, daemon.wait).start()
    endpoint.stop(force=True)
    assert endpoint.find_process() is None


def in_this_process(*arguments):
    shown, said = io.StringIO(), io.StringIO()
    with redirect_stdout(shown), redirect_stderr(said):
        main(arguments)
    if not shown.getvalue():
        raise LocalCloudError(said.getvalue())
    return json.loads(shown.getvalue())


def test_a_record_of_a_newer_one_is_refused_with_what_to_do(daemon):
    write("http://127.0.0.1:9", daemon.pid, format=2)
    with raises_code("newer-local-cloud", "phalanx local stop --force"):
        endpoint.find()


def test_one_that_hangs_is_not_awaited_for_long(daemon, monkeypatch):
    monkeypatch.setattr(endpoint, "_answer", in_this_process)
    monkeypatch.setattr(endpoint_file, "_ANSWER_TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        write(f"http://127.0.0.1:{silent.getsockname()[1]}", daemon.pid)
        with pytest.raises(LocalCloudError, match="does not answer"):
            endpoint.stop()
        threading.Timer(0.05, daemon.wait).start()
        endpoint.stop(force=True)
    assert endpoint.find_process() is None


def test_an_unknown_mode_is_reported_before_anything_is_started(monkeypatch):
    monkeypatch.setenv("PHALANX_LOCAL_MODE", "foo")
    with pytest.raises(LocalCloudError, match="PHALANX_LOCAL_MODE is 'foo'") as reported:
        endpoint.begin()
    assert "range, single, root" in reported.value.hint
    assert not list(endpoint.state().iterdir())


def test_it_is_started_and_awaited(monkeypatch):
    record = record_of("u", os.getpid())
    path = endpoint.state() / "endpoint.json"
    monkeypatch.setattr(endpoint, "_serve_argv", lambda: ["sh", "-c", f"echo '{json.dumps(record)}' > {path}"])
    endpoint.begin()
    assert endpoint.wait().pid == os.getpid()


def test_another_process_with_a_reused_pid_is_left_alone():
    stranger = subprocess.Popen(["sleep", "60"])
    try:
        write("http://127.0.0.1:9", stranger.pid, started_ticks=1)
        assert endpoint.find() is None
        assert not endpoint.stop(force=True)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"pid": "x"}', '{"pid": 1}', "\udcff"])
def test_a_damaged_record_counts_as_none(text):
    (endpoint.state() / "endpoint.json").write_text(text, errors="surrogateescape")
    assert endpoint.find() is None
    assert not endpoint.stop()


def test_one_whose_record_is_lost_is_reported_and_ended_by_force(daemon, monkeypatch):
    monkeypatch.setattr(endpoint, "START_TIMEOUT_S", 0.05)
    with raises_code("damaged-record", "endpoint.json", "phalanx local stop --force"):
        endpoint.find()
    monkeypatch.setattr(endpoint, "_answer", in_this_process)
    monkeypatch.setattr(lifecycle, "START_TIMEOUT_S", 0.05)
    with pytest.raises(LocalCloudError, match=r"does not answer(.|\n)*--force"):
        endpoint.stop()
    threading.Timer(0.05, daemon.wait).start()
    assert endpoint.stop(force=True)
    assert endpoint.find() is None


def test_a_kept_file_system_is_found_by_its_cluster_and_a_damaged_record_is_named():
    tags = [{"Key": "phalanx:cluster", "Value": "demo"}]
    (endpoint.state() / "efs").mkdir()
    (endpoint.state() / "efs/fs-1.json").write_text(json.dumps({"region": "us-east-1", "tags": tags}))
    (endpoint.state() / "efs/fs-2.json").write_text("{")

    def kept(name, region):
        return ThisMachine(LocalAws(region)).facts(ClusterSpec(name=name, region=region, nodes=1), "").kept_file_system

    assert [kept("demo", "us-east-1"), kept("other", "us-east-1"), kept("demo", "eu-west-1")] == ["fs-1", "", ""]
    assert endpoint.kept_file_system("fs-1")["region"] == "us-east-1"
    with raises_code("damaged-record", "fs-2", "fs-2.json"):
        endpoint.kept_file_system("fs-2")
    with raises_code("no-file-system", "'fs-3'", "fs-1, fs-2"):
        endpoint.kept_file_system("fs-3")


def test_one_that_can_t_start_says_why(monkeypatch):
    monkeypatch.setattr(
        endpoint, "_serve_argv", lambda: ["sh", "-c", "echo 'user namespaces are forbidden' >&2; exit 1"]
    )
    endpoint.begin()
    with pytest.raises(LocalCloudError, match="user namespaces are forbidden"):
        endpoint.wait()
    assert not list(endpoint.state().iterdir())


def test_a_full_disk_is_named(monkeypatch):
    argv = [sys.executable, "-c", "import sys; sys.exit('OSError: [Errno 28] No space left on device')"]
    monkeypatch.setattr(endpoint, "_serve_argv", lambda: argv)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=4096))
    endpoint.begin()
    with raises_code("disk-full", endpoint.state()) as caught:
        endpoint.wait()
    assert "PHALANX_STATE_DIR" in caught.value.hint


def refused(monkeypatch, hint="", code="UnsupportedOperation"):
    """Return the error of a call that the local cloud refuses."""

    def refuse(self, service, operation, **arguments):
        cause = ClientError({"Error": {"Code": code, "Message": ""}}, operation)
        raise CloudError(f"{service}:{operation} was refused ({code})", hint) from cause

    monkeypatch.setattr(Aws, "call", refuse)
    with pytest.raises(CloudError) as caught:
        LocalAws("us-east-1", "local").call("fsx", "describe_file_systems")
    return caught.value


def test_a_refusal_by_one_that_another_version_started_says_so(served, daemon, monkeypatch):
    error = refused(monkeypatch)
    assert f"(process {daemon.pid})" in error.hint and "another version" in error.hint
    assert "`phalanx local stop --force`" in error.hint
    assert refused(monkeypatch, "Look there.").hint == "Look there."


def test_a_refusal_by_one_that_this_version_started_is_left_as_it_is(served, monkeypatch):
    found = endpoint.find()
    assert found
    write(found.url, found.pid, code=localcloud.code())
    assert refused(monkeypatch).hint == ""


def test_what_does_not_exist_is_no_reason_to_start_the_program_that_knows_the_version(served, monkeypatch):
    monkeypatch.setattr(endpoint, "_run", lambda *_: pytest.fail("a process for each thing that is gone"))
    assert refused(monkeypatch, code="FileSystemNotFound").hint == ""


def test_what_it_is_started_with_makes_this_interpreter_visible_in_nodes():
    argv = endpoint._serve_argv()
    assert argv[:2] == [sys.executable, "-I"]
    assert sys.prefix in argv
    assert argv[argv.index("--path") + 1] == f"{sys.prefix}/bin"


def test_the_isolated_local_cloud_is_found_in_the_user_s_site_packages(tmp_path, monkeypatch):
    made = shutil.copytree(Path(isolated.__file__).parent, tmp_path / "phalanx/local")
    (tmp_path / "localcloud").mkdir()
    (tmp_path / "localcloud/__main__.py").write_text("import sys; print(__file__, *sys.argv[1:])")
    monkeypatch.setattr(isolated, "__file__", str(made / "isolated.py"))
    monkeypatch.setattr(site, "ENABLE_USER_SITE", True)
    monkeypatch.setattr(site, "getusersitepackages", lambda: str(tmp_path))
    # The Python of the environment that runs the tests has a local cloud of its own.
    monkeypatch.setattr(sys, "executable", f"{sys.base_prefix}/bin/python3")
    shown = subprocess.run(isolated.program("status"), cwd="/", capture_output=True, text=True, timeout=60)
    assert shown.stdout.split() == [str(tmp_path / "localcloud/__main__.py"), "status"], shown.stderr
