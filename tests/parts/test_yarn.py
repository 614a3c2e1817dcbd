"""YARN, with a server that answers as Hadoop documents its ResourceManager's REST API. No Hadoop runs here."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from error_codes import raises_code
from fake_nodes import FakeCluster

from phalanx.jobs.job import JobSpec, JobState, JobStatus, OutputLine, submit
from phalanx.runner.batch.scheduling import ENDED, HELD, QUEUED, Request, shown
from phalanx.runner.process import RefusedError
from phalanx.schedulers import yarn


class FakeResourceManager(BaseHTTPRequestHandler):
    """Answers as Hadoop's documentation of the ResourceManager's REST API does."""

    asked: ClassVar[list[tuple[str, str, dict]]] = []
    # The states in order; the last one stays. A PUT is accepted, and takes effect a moment later.
    states: ClassVar[list[str]] = []
    has_filter = True
    # Where containers run, with these variables; None: they never run.
    runs_in: ClassVar[Path | None] = None
    environment: ClassVar[dict[str, str]] = {}
    # The memory of its nodes, and how it writes their list.
    nodes: ClassVar[list[int]] = []
    # The containers that an application still waits for, while it runs.
    missing: ClassVar[list[int]] = []

    def do_POST(self) -> None:
        body = self.body()
        path = self.path.partition("?")[0]
        if not self.has_filter:
            self.answer(403, None)
        elif path.endswith("/new-application"):
            capability = {"memory": 8192, "vCores": 32}
            self.answer(200, {"application-id": "application_1_0001", "maximum-resource-capability": capability})
        elif body.get("queue") == "nosuch":
            text = "Application application_1_0001 submitted by user phalanx to unknown queue: nosuch"
            self.answer(400, {"RemoteException": {"exception": "YarnException", "message": text}})
        else:
            self.answer(202, None)
            if self.runs_in:
                threading.Thread(
                    target=self.run_container, args=(body["am-container-spec"]["commands"]["command"],)
                ).start()

    def run_container(self, command: str) -> None:
        """Run the container like the distributed shell's master, from the file that its own command writes.

        YARN writes each command into a launch_container.sh, between double quotes.
        """
        subprocess.run(["sh", "-c", f'exec bash -c "{command.partition(" && ")[0]}"'], cwd=self.runs_in, check=True)
        started = (self.runs_in / "shellCommands").read_bytes()[2:].decode()
        self.states[:] = ["RUNNING"]
        script = f'exec bash -c "{started}"'
        subprocess.run(["sh", "-c", script], cwd=self.runs_in, env={**self.environment, "CONTAINER_ID": "container_1"})
        self.states[:] = ["FINISHED"]

    def do_GET(self) -> None:
        self.body()
        if self.path.partition("?")[0].endswith("/nodes"):
            found = [{"state": "RUNNING", "usedMemoryMB": 1000, "availMemoryMB": mb - 1000} for mb in self.nodes]
            found.append({"state": "LOST", "usedMemoryMB": 0, "availMemoryMB": 0})
            self.answer(200, {"nodes": {"node": found}})
            return
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        final = "KILLED" if state == "KILLED" else "UNDEFINED"
        requests = [{"resourceName": "*", "numContainers": count} for count in self.missing]
        reported = {"state": state, "finalStatus": final, "diagnostics": "in the queue", "resourceRequests": requests}
        self.answer(200, {"app": {"id": "application_1_0001", **reported}})

    def do_PUT(self) -> None:
        self.states[:] = [self.states[0], self.body()["state"]]
        self.answer(202, {"state": self.states[0]})

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


@pytest.fixture(autouse=True)
def as_a_file(monkeypatch):
    """Pretend to run from a zipapp, because a runner starts others from its own file."""
    monkeypatch.setattr(sys, "argv", [__file__])


@pytest.fixture
def manager() -> Iterator[str]:
    FakeResourceManager.asked.clear()
    FakeResourceManager.states[:] = ["ACCEPTED"]
    FakeResourceManager.has_filter, FakeResourceManager.runs_in = True, None
    FakeResourceManager.nodes[:], FakeResourceManager.missing[:] = [12288, 12288, 8192], []
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
    assert yarn.status(allocation, no_command).phase == QUEUED
    _, _, body = FakeResourceManager.asked[2]
    command = body["am-container-spec"]["commands"]["command"]
    assert "--num_containers 3" in command and "--container_vcores 2" in command
    assert "'attend' 'yarn'" in command.replace("'\\''", "'") and "application_1_0001 3 2" in command
    yarn.cancel(allocation, no_command)
    assert yarn.status(allocation, no_command).phase == QUEUED
    found = yarn.status(allocation, no_command)
    assert (found.phase, found.killed) == (ENDED, True)


def test_containers_are_so_large_that_no_two_fit_on_a_node(manager):
    """YARN may place all containers of a job on one node: its distributed shell can't spread them."""
    yarn.submit(asking(manager), no_command)
    assert "--container_memory 7168 " in FakeResourceManager.asked[2][2]["am-container-spec"]["commands"]["command"]
    yarn.submit(asking(manager, "--memory", "9000"), no_command)
    assert "--container_memory 9000 " in FakeResourceManager.asked[5][2]["am-container-spec"]["commands"]["command"]


@pytest.mark.parametrize(("nodes", "said"), [([12288, 12288], "has 2 nodes"), ([12288], "has 1 node "), ([], "has 0")])
def test_a_job_for_more_nodes_than_yarn_has_is_refused(manager, nodes, said):
    FakeResourceManager.nodes[:] = nodes
    with pytest.raises(RefusedError, match=rf"needs 3 nodes, and YARN {said}(.|\n)*-n {len(nodes) or 1} -N 1"):
        yarn.submit(asking(manager), no_command)


def test_an_application_that_waits_for_containers_is_queued(manager):
    FakeResourceManager.states[:], FakeResourceManager.missing[:] = ["RUNNING"], [0, 2]
    allocation = f"{manager}/ws/v1/cluster/apps/application_1_0001"
    waiting = yarn.status(allocation, no_command)
    assert (waiting.phase, waiting.description) == (QUEUED, "2 of its containers wait")
    FakeResourceManager.missing[:] = [0, 0]
    assert yarn.status(allocation, no_command).phase == HELD


def test_what_yarn_refuses_is_reported_with_its_message(manager):
    with pytest.raises(RefusedError, match="unknown queue: nosuch"):
        yarn.submit(asking(manager, "--queue", "nosuch"), no_command)
    with pytest.raises(RefusedError, match="--memory"):
        yarn.submit(asking(manager, "--nonsense", "1"), no_command)


def test_one_without_authentication_is_reported_with_what_it_lacks(manager):
    FakeResourceManager.has_filter = False
    with raises_code("scheduler", "403 Forbidden", "hadoop.http.filter", kind=RefusedError) as caught:
        yarn.submit(asking(manager), no_command)
    assert "user.name" not in str(caught.value)


@pytest.mark.parametrize(
    ("state", "final", "message", "killed", "retryable"),
    [
        ("FINISHED", "SUCCEEDED", "FINISHED: done", False, False),
        ("FINISHED", "FAILED", f"FINISHED (FAILED): done{yarn._OTHER_USER}", False, False),
        ("FAILED", "FAILED", "FAILED: done", True, False),
        ("KILLED", "KILLED", "KILLED: done", True, False),
        ("FAILED", "FAILED", "FAILED: AM container was preempted", True, True),
    ],
)
def test_the_end_of_an_application_is_reported_with_yarns_diagnostics(state, final, message, killed, retryable):
    diagnostics = message.partition(": ")[2].removesuffix(yarn._OTHER_USER)
    found = yarn.read_status({"state": state, "finalStatus": final, "diagnostics": f"{diagnostics}\n"})
    assert (found.phase, found.description, found.killed, found.retryable) == (ENDED, message, killed, retryable)


def test_the_master_is_given_the_command_as_java_reads_it(manager, tmp_path):
    """The distributed shell's master reads its file by DataInputStream.readUTF: two bytes of length, then the text."""
    yarn.submit(asking(manager), no_command)
    command = FakeResourceManager.asked[2][2]["am-container-spec"]["commands"]["command"]
    subprocess.run(["sh", "-c", f'exec bash -c "{command.partition(" && ")[0]}"'], cwd=tmp_path, check=True)
    data = (tmp_path / "shellCommands").read_bytes()
    assert int.from_bytes(data[:2], "big") == len(data) - 2
    assert data[2:].decode() == asking(manager).attend("application_1_0001", "3", "2")


def test_a_job_runs_in_the_container_that_yarn_grants(manager, tmp_path):
    cluster = FakeCluster(tmp_path, nodes=1)
    cluster.be_found()
    FakeResourceManager.runs_in, FakeResourceManager.environment = tmp_path, cluster.env
    (tmp_path / "code").mkdir()
    command = ("sh", "-c", "echo $RANK of $WORLD_SIZE, ${CONTAINER_ID-hidden}")
    options = {"via": "yarn", "via_options": ("--rm", manager), "launcher": "exec", "per_node": 2}
    lines, status = run_job(cluster, JobSpec(command, directory=tmp_path / "code", **options))
    assert sorted(lines) == ["0 of 2, hidden", "1 of 2, hidden"]
    assert (status.state, status.verified) == (JobState.SUCCEEDED, True)


def run_job(cluster: FakeCluster, spec: JobSpec) -> tuple[list[str], JobStatus]:
    lines, status = [], None
    for event in submit(cluster, spec).follow():
        if isinstance(event, OutputLine):
            lines.append(event.data.decode())
        else:
            status = event
    assert status is not None
    return lines, status


def test_a_resource_manager_that_is_not_there_is_named():
    with raises_code("scheduler", "http://127.0.0.1:9", kind=RefusedError):
        yarn.submit(asking("http://127.0.0.1:9"), no_command)
    with raises_code("scheduler", "nonsense", kind=RefusedError):
        yarn.submit(asking("nonsense"), no_command)


def test_a_server_that_is_not_yarn_is_reported(manager, monkeypatch):
    monkeypatch.setattr(FakeResourceManager, "answer", lambda handler, *_: handler.wfile.write(b"SSH-2.0\r\n"))
    with pytest.raises(RefusedError, match="does not answer"):
        yarn._nodes(f"{manager}/ws/v1/cluster")
    with pytest.raises(RefusedError, match="does not answer"):
        yarn.status(f"{manager}/ws/v1/cluster/apps/application_1_0001", no_command)


def test_an_incomplete_answer_is_reported(monkeypatch):
    for answer in ({}, {"app": {}}, {"app": None}, []):
        monkeypatch.setattr(yarn, "_ask", lambda *_, answer=answer: answer)
        with pytest.raises(RefusedError, match="in its answer"):
            yarn.status("http://rm:8088/ws/v1/cluster/apps/application_1_0001", no_command)
    for nodes in ("none", {"node": ["rm"]}, {"node": [{"state": "RUNNING", "usedMemoryMB": None}]}):
        monkeypatch.setattr(yarn, "_ask", lambda *_, nodes=nodes: {"nodes": nodes})
        with pytest.raises(RefusedError, match="no list of nodes"):
            yarn._nodes("http://rm:8088/ws/v1/cluster")
