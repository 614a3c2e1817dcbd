"""A job crowds the local cloud's API, whose process serves all clusters of this machine's user."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from local_clouds import api, endpoint
from processes import descendants
from terminals import Terminal, read_until

from localcloud.nodes.machine import API_ADDRESS, API_PORT

pytestmark = pytest.mark.cluster

PROGRAM = shlex.quote((Path(__file__).parent / "hold_connections.py").read_text())
ATTACKER, OTHER = "worker2", "worker3"
MOST_MEMORY_KIB = 256 << 10
MOST_FILES, MOST_FILES_AFTERWARDS = 200, 20
# Without a signature the answer is a refusal; what counts is that there is one.
CALL = f"c = http.client.HTTPConnection('{API_ADDRESS}', {API_PORT}, timeout=30); c.request('GET', '/')"
ASK = f'python3 -c "import http.client; {CALL}; print(c.getresponse().status)"'


OTHERS = "name: fillers\ncloud: local\nnodes: 2\nmin: 2\ntype: c5.large\nshared: /efs\nkeep: no\n"
ANYTHING = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}
TRUSTS_ALL = {**ANYTHING, "Statement": [{"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"AWS": "*"}}]}


class Server:
    """The process that serves the API."""

    def __init__(self, terminal: Terminal) -> None:
        there = endpoint(terminal)
        port = int(there["url"].rpartition(":")[2])
        lines = Path("/proc/net/tcp").read_text().splitlines()
        (inode,) = (line.split()[9] for line in lines if f":{port:04X} 00000000:0000 0A" in line)
        # The processes that it has forked closed theirs.
        (self._proc,) = (
            Path(f"/proc/{pid}") for pid in descendants(there["pid"]) if f"socket:[{inode}]" in _files(pid)
        )

    def forget_peak(self) -> None:
        (self._proc / "clear_refs").write_text("5")

    def memory_kib(self, name: str) -> int:
        """VmRSS, or VmHWM: the most since `forget_peak`."""
        found = re.search(rf"^{name}:\s+(\d+) kB$", (self._proc / "status").read_text(), re.MULTILINE)
        assert found
        return int(found[1])

    def files(self) -> int:
        return len(_files(int(self._proc.name)))


def _files(pid: int) -> list[str]:
    """What a process has open; nothing of one that has ended, or that another account of a node started."""
    found = []
    with suppress(OSError):
        for one in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                found.append(str(one.readlink()))
    return found


@pytest.mark.parametrize("kind", ["headers", "bodies", "documents"])
def test_a_job_takes_little_of_the_local_cloud_and_nobody_else_s_place(cluster, kind):
    server = Server(cluster)
    memory_kib, files = server.memory_kib("VmRSS"), server.files()
    server.forget_peak()
    with cluster.start("ssh", ATTACKER, "--", f"python3 -c {PROGRAM} {API_ADDRESS}:{API_PORT} {kind}") as job:
        read_until(job, "holding")
        assert cluster.phalanx("status", timeout_s=60).stdout
        assert OTHER in cluster.phalanx("nodes", timeout_s=60).stdout
        assert api(cluster, "sts").get_caller_identity()["Account"]
        assert cluster.on(OTHER, ASK) == "403\n"
        # By now it has accepted all that wanted to connect.
        assert server.files() - files < MOST_FILES
        assert read_until(job, "given up") == "the server has given up all but 0\n"
    assert server.files() - files < MOST_FILES_AFTERWARDS
    assert server.memory_kib("VmHWM") - memory_kib < MOST_MEMORY_KIB


@pytest.fixture(scope="module")
def fillers(cluster) -> Iterator[Terminal]:
    """Another cluster in the same local cloud, whose jobs may do everything."""
    terminal = cluster.beside("fillers", OTHERS)
    terminal.phalanx("up")
    try:
        role, iam = outputs(terminal)["JobRole"], api(terminal, "iam")
        iam.put_role_policy(RoleName=role, PolicyName="granted", PolicyDocument=json.dumps(ANYTHING))
        iam.update_assume_role_policy(RoleName=role, PolicyDocument=json.dumps(TRUSTS_ALL))
        program = (Path(__file__).parent / "fill_api.py").read_text()
        (terminal.directory / "fill_api.py").write_text(program)
        terminal.on("head", f"cat > /efs/fill_api.py <<'END'\n{program}END")
        yield terminal
        iam.delete_role_policy(RoleName=role, PolicyName="granted")
    finally:
        terminal.phalanx("down", "--yes")


def outputs(terminal: Terminal) -> dict[str, str]:
    (stack,) = api(terminal, "cloudformation").describe_stacks(StackName="fillers")["Stacks"]
    return {output["OutputKey"]: output["OutputValue"] for output in stack["Outputs"]}


def fill(fillers: Terminal, kind: str) -> list[str]:
    """Fill what there is of a kind from both nodes; return the codes with which they were refused."""
    role = api(fillers, "iam").get_role(RoleName=outputs(fillers)["JobRole"])["Role"]["Arn"]
    more = {"sessions": (role,), "signals": ("fillers", "HeadGroup")}.get(kind, ())
    if kind == "tokens":
        shown = fillers.phalanx("exec", "--sudo", "--", f"python3 /efs/fill_api.py {kind}").stdout
    else:
        words = ("--launcher", "exec", "-N", "1", "--", "python3", "fill_api.py", kind, *more)
        shown = fillers.phalanx("run", *words).stdout
    return re.findall(rf"filled {kind}: \d+ ?(\w*)", shown)


@pytest.mark.parametrize(
    ("kind", "refusal"),
    [
        # Those of make test stand for the kinds: what ends the oldest, what refuses, what throttles.
        pytest.param("logs", "", marks=pytest.mark.long),
        pytest.param("metrics", "", marks=pytest.mark.long),
        pytest.param("tokens", "", marks=pytest.mark.long),
        # Its oldest ones end, and not those that the agent has for jobs.
        ("sessions", ""),
        # The stack is complete, and waits for none.
        ("signals", "ValidationError"),
        pytest.param("messages", "RequestThrottled", marks=pytest.mark.long),
        ("items", "ProvisionedThroughputExceededException"),
        pytest.param("objects", "", marks=pytest.mark.long),
        pytest.param("parameters", "ThrottlingException", marks=pytest.mark.long),
    ],
)
def test_jobs_that_fill_the_api_leave_memory_and_other_clusters_alone(cluster, fillers, kind, refusal):
    server = Server(cluster)
    memory_kib = server.memory_kib("VmRSS")
    server.forget_peak()
    assert fill(fillers, kind) == [refusal, refusal]
    of_objects_kib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 8 // 1024 if kind == "objects" else 0
    assert server.memory_kib("VmHWM") - memory_kib < 2 * MOST_MEMORY_KIB + of_objects_kib
    assert cluster.phalanx("run", "--launcher", "exec", "-N", "1", "--", "true", timeout_s=120).returncode == 0
    api(cluster, "logs").create_log_group(logGroupName=f"mine-{kind}")
    assert fillers.on("worker2", "echo in") == "in\n"
