"""Tools and secrets on four real nodes: files, ports, plain ssh, one command on all nodes, Python."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from fleet_fakes import until
from ports import free_port
from terminals import MADE, Terminal, environments_of, link_complete, read_until, shared_of

pytestmark = pytest.mark.cluster

SECRET = "swordfish 'in' $water"
PIECE = "rdfish 'in"  # no command line of this test contains it in one piece
# TensorBoard's own writer, which needs neither torch nor TensorFlow.
EVENTS = """
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

writer = EventFileWriter("runs")
writer.add_event(Event(step=1, summary=Summary(value=[Summary.Value(tag="loss", simple_value=0.5)])))
writer.close()
"""


def run(cluster: Terminal, code: Path, *arguments: str, options: tuple[str, ...] = (), launcher: str = "exec") -> str:
    """Run a job, which must succeed; return its id."""
    cluster.phalanx("run", "--directory", str(code), "--launcher", launcher, *options, "--", *arguments)
    return json.loads(cluster.phalanx("jobs", "--json").stdout)[0]["id"]


def url(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    shown = []
    for line in process.stdout:
        shown.append(line)
        if line.startswith("http"):
            return line.strip()
    raise AssertionError("".join(shown))


def interrupt(process: subprocess.Popen[str]) -> tuple[int, str]:
    process.send_signal(signal.SIGINT)
    shown, _ = process.communicate(timeout=600)
    return process.returncode, shown


def test_results_and_data_are_copied(cluster, tmp_path):
    (tmp_path / "train.sh").write_text("mkdir -p ck/$RANK; head -c 3000000 /dev/urandom > ck/$RANK/model.pt\n")
    job = run(cluster, tmp_path, "sh", "train.sh")
    home = cluster.phalanx("get", job, "ck", str(tmp_path / "home")).stdout.strip()
    sums = cluster.on("head", f"cd /efs/.phalanx/jobs/{job}/work/ck && sha256sum */model.pt")
    assert (
        subprocess.run(["sha256sum", "-c"], input=sums, cwd=home, text=True, stdout=subprocess.DEVNULL).returncode == 0
    )
    assert cluster.phalanx("put", home, "sets/one", check=False).returncode == 0
    assert cluster.on("worker3", "cd /efs/sets/one && sha256sum */model.pt") == sums
    refused = cluster.phalanx("get", job, "../../../../etc/passwd", check=False)
    assert (refused.returncode, "is outside of" in refused.stderr) == (2, True)


@pytest.mark.parametrize("launcher", ["exec", "mpi"])
def test_a_secret_is_in_no_argument_no_log_and_no_file(cluster, tmp_path, launcher):
    (tmp_path / "use.sh").write_text('printf %s "$TOKEN" | wc -c\nuntil [ -e /efs/looked ]; do sleep 0.1; done\n')
    options = ["run", "--directory", str(tmp_path), "--launcher", launcher, "-n", "4", "-N", "1", "--secret", "TOKEN"]
    typed = cluster.start(*options, "--", "sh", "use.sh", TOKEN=SECRET)
    shown = read_until(typed, f"] {len(SECRET)}\n", times=4)
    # As root: every process's arguments, and every file that a node wrote. `[r]` keeps the search from finding itself.
    pattern = PIECE.replace("r", "[r]", 1).replace("'", ".")
    arguments = f"cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -c '{pattern}'"
    assert set(outputs(cluster, "--sudo", arguments)) == {"0\n"}
    assert files_with(cluster, pattern) == {""}
    # As another user: whatever ps shows of environments.
    seen = cluster.phalanx("ssh", "--admin", "worker2", "--", f"ps auxewww | grep -c '{pattern}'", check=False).stdout
    separated = json.loads((cluster.state / "clusters/contract/cluster.json").read_text())["accounts_separated"]
    assert not separated or seen == "0\n"
    cluster.on("head", "touch /efs/looked")
    shown += typed.communicate(timeout=600)[0]
    assert sorted(re.findall(rf"^\[(\d)\] {len(SECRET)}$", shown, re.MULTILINE)) == ["0", "1", "2", "3"], shown
    assert SECRET not in shown
    assert files_with(cluster, pattern) == {""}
    cluster.on("head", "rm /efs/looked")


def files_with(cluster: Terminal, pattern: str) -> set[str]:
    """Find the files that contain it: each node's own (not this machine's), and those on the shared directory."""
    look = f"-xdev -type f -print0 | LC_ALL=C xargs -0 grep -slE '{pattern}'"
    own = outputs(cluster, "--sudo", f"find /var/log /run /tmp /opt/phalanx /etc /home {look}")
    return {*own, *outputs(cluster, "--sudo", "--node", "head", f"find /efs {look}")}


def outputs(cluster: Terminal, *arguments: str) -> list[str]:
    """Return what a command printed on each node."""
    *options, command = arguments
    done = cluster.phalanx("exec", "--json", *options, "--", command, check=False)
    return [verdict["stdout"] for verdict in json.loads(done.stdout)]


def test_one_command_everywhere_has_a_verdict_for_each_node(cluster):
    done = cluster.phalanx("exec", "--", "test $(hostname) != $(head -1 /opt/deeplearning/workers); hostname")
    assert len(set(done.stdout.split())) == 4
    assert done.stderr.count(": ok after") == 4
    assert set(outputs(cluster, "--sudo", "id -u")) == {"0\n"}
    failed = cluster.phalanx(
        "exec", "--node", "worker2", "--node", "head", "--", '[ -n "$(hostname -I)" ]; exit 7', check=False
    )
    assert failed.returncode == 1
    assert failed.stderr.count(": status 7 after") == 2


def test_links_are_limited_and_shown_by_node(cluster):
    shaped = cluster.phalanx("local", "link", "worker2", "--rate", "2.5gbit", "--json").stdout
    assert json.loads(shaped) == [{"name": "deeplearning-worker2", "rate_bit_s": 2_500_000_000, "delay_s": 0.0}]
    shown = cluster.phalanx("local", "link").stdout
    assert [line.split()[1:] for line in shown.splitlines()[2:3]] == [["2500", "Mbit/s", "none"]]
    wrong = cluster.phalanx("local", "link", "--rate", "fast", check=False)
    assert (wrong.returncode, "'fast' is not a rate" in wrong.stderr) == (2, True)
    cluster.phalanx("local", "link", "--rate", "none")
    assert {node["rate_bit_s"] for node in json.loads(cluster.phalanx("local", "link", "--json").stdout)} == {0}


def test_a_slow_node_is_named_by_the_check_of_the_network(cluster, tmp_path):
    check = ("check", "net", "--json", "--plot", str(tmp_path / "net.svg"))
    cluster.phalanx("local", "link", "worker3", "--rate", "100mbit")
    try:
        # On a busy machine, nodes may be slow for real.
        for _ in range(5):
            checked = cluster.phalanx(*check, check=False)
            found = json.loads(checked.stdout)
            if len(found["problems"]) == 1:
                break
    finally:
        cluster.phalanx("local", "link", "--rate", "none")
    assert (checked.returncode, len(found["links"]), found["engine"]) == (1, 12, "gloo"), checked.stderr
    assert {node["transport"] for node in found["nodes"]} == {"TCP"}
    assert [text.split()[:2] for text in found["problems"]] == [["deeplearning-worker3", "sends"]]
    assert "<svg" in (tmp_path / "net.svg").read_text()


def test_the_check_of_the_network_sums_with_mpi(cluster):
    found = json.loads(cluster.phalanx("check", "net", "--launcher", "mpi", "--json", check=False).stdout)
    assert (found["engine"], len(found["all_reduce"]), found["links"][0]["error"]) == ("mpi", 6, "")
    assert {node["name"] for node in found["nodes"]} == {f"deeplearning-worker{number}" for number in range(1, 5)}
    assert {node["transport"].partition(" v")[0] for node in found["nodes"]} == {"TCP (Open MPI"}


def test_plain_ssh_scp_rsync_and_a_forwarded_agent_reach_every_node(cluster, tmp_path):
    (tmp_path / "hosts").write_text(cluster.phalanx("ssh-config").stdout)
    (tmp_path / "file").write_text("carried")
    flags = ["-q", "-F", str(tmp_path / "hosts")]
    subprocess.run(["scp", *flags, tmp_path / "file", "contract-worker3:/tmp/carried"], check=True, timeout=600)
    seen = subprocess.run(
        ["ssh", *flags, "contract-worker3", "cat /tmp/carried; hostname"], capture_output=True, timeout=600
    )
    assert seen.stdout == b"carried" + cluster.on("worker3", "hostname").encode()
    shell = f"ssh {' '.join(flags)}"
    subprocess.run(["rsync", "-e", shell, "contract-worker3:/tmp/carried", tmp_path / "back"], check=True, timeout=600)
    assert (tmp_path / "back").read_text() == "carried"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "mine"], check=True, timeout=600)
    # From this machine to the head, and from there to a worker.
    there = f"ssh-add -q {tmp_path}/mine && ssh -A {' '.join(flags)} contract ssh -A deeplearning-worker3 ssh-add -L"
    agent = subprocess.run(["ssh-agent", "sh", "-c", there], capture_output=True, text=True, timeout=600)
    assert agent.stdout == (tmp_path / "mine.pub").read_text(), agent.stderr


def test_what_editors_do_over_plain_ssh_works(cluster, tmp_path):
    """VS Code Remote starts a server by a shell script, and reaches it by a dynamic forward."""
    (tmp_path / "hosts").write_text(cluster.phalanx("ssh-config").stdout)
    port = free_port()
    script = "cd /tmp; echo hello > edited; nohup python3 -m http.server -b 127.0.0.1 8124 >/dev/null 2>&1 & "
    script += "echo $! > edit.pid; until python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 8124))' "
    script += "2>/dev/null; do :; done; echo it listens; exec cat\n"
    argv = ["ssh", "-q", "-T", "-D", str(port), "-F", tmp_path / "hosts", "contract-worker2", "bash"]
    shell = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert shell.stdin
        assert shell.stdout
        shell.stdin.write(script)
        shell.stdin.flush()
        assert shell.stdout.readline() == "it listens\n"
        assert through_socks(port, 8124, "/edited").endswith(b"hello\n")
        shell.communicate(timeout=300)
        assert cluster.on("worker2", "kill -0 $(cat /tmp/edit.pid) && echo it lives on") == "it lives on\n"
    finally:
        shell.kill()
        shell.wait()
        cluster.on("worker2", "kill $(cat /tmp/edit.pid)")


def through_socks(proxy_port: int, port: int, path: str) -> bytes:
    """Send a GET to the node's 127.0.0.1:port through SOCKS (RFC 1928 without authentication)."""
    with socket.create_connection(("127.0.0.1", proxy_port), timeout=240) as proxy:
        proxy.sendall(b"\x05\x01\x00")
        assert proxy.recv(2) == b"\x05\x00"
        proxy.sendall(b"\x05\x01\x00\x01" + socket.inet_aton("127.0.0.1") + port.to_bytes(2, "big"))
        assert proxy.recv(10)[:2] == b"\x05\x00"
        proxy.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        return b"".join(iter(lambda: proxy.recv(4096), b""))


def test_a_port_of_a_worker_is_forwarded_until_ctrl_c(cluster):
    server = "nohup python3 -m http.server -b 127.0.0.1 8123 >/dev/null 2>&1 & echo $! > web.pid"
    cluster.on("worker2", f"cd /tmp && echo hello > greeting && ({server})")
    port = free_port()
    listens = "python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 8123))'"
    cluster.on("worker2", f"until {listens}; do sleep 0.1; done")
    process = cluster.start("forward", f"{port}:8123", "--node", "worker2")
    address = url(process)
    assert read(f"{address}/greeting") == b"hello\n"
    silent = cluster.start("forward", f"{free_port()}:8122", "--node", "worker2")
    url(silent)
    read_until(silent, "nothing listens on port 8122 of deeplearning-worker2")
    assert interrupt(silent)[0] == 0
    taken = cluster.phalanx("forward", str(port), check=False)
    assert (taken.returncode, "is not available" in taken.stderr) == (1, True)
    status, _ = interrupt(process)
    assert status == 0
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=1)
    cluster.on("worker2", "kill $(cat /tmp/web.pid)")


def test_a_port_that_listens_on_ipv6_only_is_forwarded(cluster):
    process = cluster.start("forward", f"{free_port()}:8124", "--node", "worker2")
    address = url(process)
    read_until(process, "nothing listens on port 8124")
    server = "nohup python3 -m http.server -b ::1 8124 >/dev/null 2>&1 & echo $! > web6.pid"
    cluster.on("worker2", f"cd /tmp && echo six > six && ({server})")
    listens = "python3 -c 'import socket; socket.create_connection((\"::1\", 8124))'"
    cluster.on("worker2", f"until {listens}; do sleep 0.1; done")
    assert read(f"{address}/six") == b"six\n"
    assert interrupt(process)[0] == 0
    cluster.on("worker2", "kill $(cat /tmp/web6.pid)")


def read(address: str) -> bytes:
    """Read a page as a browser does, which takes each name below localhost for loopback."""
    there = urllib.parse.urlsplit(address)
    assert there.hostname == "contract.localhost"
    headers = {"Host": there.netloc, "Sec-Fetch-Mode": "navigate"}
    request = urllib.request.Request(address.replace(there.hostname, "127.0.0.1", 1), headers=headers)
    return urllib.request.urlopen(request, timeout=240).read()


@pytest.fixture(scope="module")
def job_with_tools(cluster, tmp_path_factory) -> str:
    """A job that wrote a curve, with TensorBoard and Jupyter's server in its environment."""
    code = tmp_path_factory.mktemp("tools")
    (code / "requirements.txt").write_text("tensorboard\njupyter_server\n")
    (code / "events.py").write_text(EVENTS)
    environments = environments_of(cluster, shared_of(cluster))
    link_complete(MADE, environments, "bin/tensorboard")
    job = run(cluster, code, "python", "events.py", options=("-n", "1", "--name", "tools"))
    MADE.mkdir(exist_ok=True)
    link_complete(environments, MADE, "bin/tensorboard")
    return job


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_tensorboard_shows_a_job_s_curves_as_long_as_the_command_lives(cluster, job_with_tools, end):
    process = cluster.start("tensorboard", job_with_tools, "--logdir", "runs", "--port", str(free_port()))
    curves = f"{url(process)}data/plugin/scalars/tags"
    deadline = time.monotonic() + 240
    while b"loss" not in read(curves):
        assert time.monotonic() < deadline, "TensorBoard does not read what the job wrote"
        time.sleep(0.5)
    if end == signal.SIGINT:
        status, shown = interrupt(process)
        assert (status, "no process of it is left on the head" in shown) == (0, True), shown
    else:
        process.kill()
        process.communicate(timeout=300)
    deadline = time.monotonic() + 240
    while cluster.on("head", "pgrep -f '[b]in/tensorboard|[t]ensorboard_data_server' || true"):
        assert time.monotonic() < deadline, "it outlives the command"


def test_jupyter_runs_in_a_job_s_environment_with_a_token(cluster, job_with_tools):
    process = cluster.start("notebook", "tools", "--root", ".phalanx", "--port", str(free_port()))
    address, _, token = url(process).partition("?")
    assert b'"jobs"' in read(f"{address}api/contents?{token}")
    with pytest.raises(urllib.error.HTTPError, match="403"):
        read(f"{address}api/contents")
    status, shown = interrupt(process)
    assert (status, "no process of it is left on the head" in shown) == (0, True), shown


def test_a_tool_that_is_nowhere_is_reported_with_a_way_that_works(cluster, tmp_path):
    (tmp_path / "true.sh").touch()
    job = run(
        cluster,
        tmp_path,
        "sh",
        "true.sh",
        options=(
            "-n",
            "1",
        ),
    )
    missing = cluster.phalanx("notebook", job, "--port", str(free_port()), check=False)
    assert "'jupyter' is not on" in missing.stderr
    assert "`jupyterlab`" in missing.stderr


def test_the_python_interface_on_a_cluster_that_is_there(cluster, tmp_path, monkeypatch):
    import phalanx

    monkeypatch.setenv("PHALANX_STATE_DIR", str(cluster.state))
    (tmp_path / "rank.sh").write_text("echo $RANK > made.$RANK; echo rank $RANK\n")
    with phalanx.Cluster.open("contract") as opened:
        future = opened.run(["sh", "rank.sh"], launcher="exec", directory=tmp_path)
        result = future.result(timeout=600)
        assert (result.exit_code, result.verified, result.output(2)) == (0, True, "rank 2\n")
        assert opened.get("made.3", tmp_path / "home", job=future).bytes == 2
        assert [verdict.ok for verdict in opened.exec(["true"])] == [True] * 4
        assert opened.jobs()[0].id == future.id
    assert json.loads(cluster.phalanx("ls", "--json").stdout)[0]["state"] == "CREATE_COMPLETE"


def test_boto3_reaches_the_local_cloud_as_the_page_says(cluster):
    page = (Path(__file__).parents[2] / "docs/local-cloud.md").read_text()
    section = page.partition("## With boto3 or the AWS CLI")[2].partition("\n## ")[0]
    lines = re.findall(r"^\$ (eval .*|python -c .*)$", section, re.MULTILINE)
    shown = cluster.typed("\n".join(lines), AWS_PROFILE="of-another-account")
    # Other tests may have clusters on the same local cloud.
    assert len(lines) == 2 and "'contract'" in shown.splitlines()[-1], shown


def test_the_program_of_the_python_page_runs_as_it_stands(cluster, tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "python.md").read_text()
    (script,) = re.findall(r'```python title="train.py"\n(.*?)```', page, re.DOTALL)
    (tmp_path / "train.py").write_text(script)
    (tmp_path / "results").mkdir()
    (tmp_path / "phalanx.yaml").write_text("name: page\ncloud: local\nnodes: 1\nkeep: no\n")
    program = "".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL))
    environment = {**os.environ, "PHALANX_STATE_DIR": str(cluster.state)}
    argv = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "\nrank 0 loss 10.0\n" in done.stdout
    assert "learning rate 0.01 → rank 0 loss 100.0" in done.stdout
    assert (tmp_path / "results" / "done-0").exists()
    assert re.search(r"^\d{5} bytes of CloudFormation, for 0\.\d+ USD an hour$", done.stdout, re.MULTILINE)


def test_a_python_block_makes_a_cluster_runs_several_jobs_at_once_and_takes_it_down(cluster, tmp_path, monkeypatch):
    import phalanx

    monkeypatch.setenv("PHALANX_STATE_DIR", str(cluster.state))
    (tmp_path / "code").mkdir()
    (tmp_path / "phalanx.yaml").write_text("name: block\ncloud: local\nnodes: 1\nkeep: no\n")
    steps: list[object] = []
    with phalanx.Cluster.up(tmp_path / "phalanx.yaml", progress=steps.append) as made:
        options: dict[str, Any] = {"launcher": "exec", "directory": tmp_path / "code"}
        futures = [made.run(f"echo {number}; exit {number}", **options) for number in range(3)]
        for_ever = made.run(["sleep", "600"], **options)
        assert futures[0].result(timeout=600).output(0) == "0\n"
        with pytest.raises(phalanx.JobFailed, match="exit code 2") as failed:
            futures[2].result(timeout=600)
        assert failed.value.result.exit_code == 2
        assert isinstance(futures[1].exception(timeout=600), phalanx.JobFailed)
        until(for_ever.running, "the last job runs")
        assert (for_ever.cancel(), for_ever.cancelled()) == (True, True)
    assert steps
    names = [one["cluster"] for one in json.loads(cluster.phalanx("ls", "--json").stdout)]
    assert names == ["contract"]
