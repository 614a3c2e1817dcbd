"""The dialer passes a connection through dial.py to a stand-in for ssh."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from unlucky import Unlucky

from localcloud.network import dial, dialer
from localcloud.network.dialer import Dialer

PROGRAM = dial.__file__


def _locate(host: str) -> tuple[str, str]:
    if host != "i-1":
        raise LookupError(f"{host} belongs to no running instance of the local cloud")
    return "vpc-1", "10.0.1.11"


@pytest.fixture
def answering() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.fixture
def path(tmp_path: Path, answering: socket.socket) -> Iterator[Path]:
    """A dialer in a path too long for a socket's address; port 22 means the answering server."""
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)

    def connect(vpc_id: str, address: str, port: int, timeout_s: float) -> socket.socket:
        assert (vpc_id, address) == ("vpc-1", "10.0.1.11")
        if port != 22:
            raise ConnectionRefusedError(111, "Connection refused")
        return socket.create_connection(answering.getsockname(), timeout_s)

    def open_session(instance_id: str, port: int, timeout_s: float) -> socket.socket:
        if instance_id != "i-1":
            raise LookupError(f"TargetNotConnected: {instance_id} is not connected")
        return connect("vpc-1", "10.0.1.11", port, timeout_s)

    made = Dialer(deep / "dial.sock", _locate, connect, open_session)
    yield deep / "dial.sock"
    made.close()


def _run(
    path: Path, host: str, port: str, stdout: int | None = None, errors: Path | str = ""
) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-IS", PROGRAM, "--errors", str(errors), str(path), host, port]
    return subprocess.run(argv, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=120)


@pytest.mark.parametrize("host", ["i-1", "ssm/i-1"])
def test_ssh_gets_a_connected_descriptor(path: Path, answering: socket.socket, host: str) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert _run(path, host, "22", theirs.fileno()).returncode == 0
        _data, fds, _flags, _address = socket.recv_fds(ours, 16, 1)
    with socket.socket(fileno=fds[0]) as connection, answering.accept()[0] as node:
        node.sendall(b"SSH-2.0")
        assert connection.recv(16) == b"SSH-2.0"


@pytest.mark.parametrize(("host", "status"), [("i-1", 0), ("203.0.113.9", 1)])
def test_without_a_port_it_only_says_whether_the_host_is_an_instance(path: Path, host: str, status: int) -> None:
    argv = [sys.executable, "-IS", PROGRAM, str(path), host]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (status, "", "")


@pytest.mark.parametrize(
    ("host", "port", "message"),
    [
        ("203.0.113.9", "22", "belongs to no running instance"),
        ("i-1", "23", "Connection refused"),
        ("ssm/i-2", "22", "TargetNotConnected: i-2 is not connected"),
    ],
)
def test_a_refusal_is_one_line_and_is_also_written_to_the_callers_file(
    path: Path, host: str, port: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "says").write_text("ssh: before\n")
    done = _run(path, host, port, errors=tmp_path / "says")
    assert done.returncode == 1
    assert (tmp_path / "says").read_text() == f"ssh: before\n{done.stderr}"
    assert done.stderr.startswith("localcloud: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_without_a_local_cloud_it_says_so(tmp_path: Path) -> None:
    done = _run(tmp_path / "dial.sock", "i-1", "22")
    assert (done.returncode, "does not answer" in done.stderr) == (1, True)


def test_it_keeps_serving_after_a_failed_accept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bind = dialer._bind
    monkeypatch.setattr(dialer, "_bind", lambda path: Unlucky(bind(path)))
    made = Dialer(tmp_path / "dial.sock", _locate, lambda *_: socket.socket())
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(60)
        asking.connect(str(tmp_path / "dial.sock"))
        asking.sendall(b"i-2 22\n")
        assert b"belongs to no running instance" in asking.recv(4096)
    made.close()


def test_only_the_owner_may_dial(path: Path) -> None:
    assert path.stat().st_mode & 0o777 == 0o600


def test_it_loads_no_python_module_but_its_own() -> None:
    """It starts before every ssh, so it loads only what -IS does, and two C modules."""
    source = Path(PROGRAM).read_text().replace('"__main__"', '"elsewhere"')
    code = f"import sys; before = set(sys.modules); exec({source!r}); print(sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-IS", "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "['__future__', '_socket']"
