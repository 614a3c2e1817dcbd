"""Running commands over ssh: its command line and its answers, with a stand-in for ssh on PATH."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from error_codes import raises_code
from fleet_fakes import until
from processes import identified, wait_until_gone

from phalanx.errors import ClusterError
from phalanx.ssh import remote as module
from phalanx.ssh.remote import ConnectionLost, HostRefused, LoginRefused, NotListening, Remote, Silent, classify

# Behaves like OpenSSH: -f -N makes a master that listens on ControlPath; a shell runs the command.
FAKE_SSH = f"""#!{sys.executable} -IS
import os, socket, subprocess, sys
argv = sys.argv[1:]
control = next(w for w in argv if w.startswith("ControlPath=")).partition("=")[2]
here = os.path.dirname(os.path.abspath(__file__))
pid_file = here + "/pid-" + os.path.basename(control)
with open(here + "/calls", "a") as calls:
    print(" ".join(argv), file=calls)
if "-O" in argv:
    os.kill(int(open(pid_file).read()), 15)
elif "-N" in argv:
    if os.path.exists(here + "/refusal"):
        if os.path.exists(here + "/proxy"):
            with open(os.environ["PHALANX_PROXY_ERRORS"], "a") as says:
                says.write(open(here + "/proxy").read())
        sys.stderr.write(open(here + "/refusal").read())
        sys.exit(255)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(control)
    listener.listen()
    child = os.fork()
    if child:
        print(child, file=open(pid_file, "w"))
        os._exit(0)
    os.setsid()
    while True:
        listener.accept()
else:
    sys.exit(subprocess.call(["sh", "-c", argv[-1]]))
"""


@pytest.fixture
def bin_directory(tmp_path, monkeypatch):
    directory = tmp_path / "bin"
    directory.mkdir()
    (directory / "ssh").write_text(FAKE_SSH)
    (directory / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")
    return directory


@pytest.fixture
def head(tmp_path, bin_directory):
    config = tmp_path / "ssh_config"
    yield Remote(config, "deeplearning-master")
    module.close_all(config)


def master_pid(head, bin_directory):
    return int((bin_directory / f"pid-{head.control_path.name}").read_text())


def gone(pid: int) -> str:
    """Return a command that waits until a process has ended; its parent may not have taken its status yet."""
    return f"while grep -qs '^State:.[^Z]' /proc/{pid}/status; do sleep 0.01; done"


def calls(bin_directory):
    return (bin_directory / "calls").read_text().splitlines()


def test_the_command_line_names_the_config_the_user_and_the_options(tmp_path):
    node = Remote(tmp_path / "ssh_config", "deeplearning-worker2", "ubuntu", ("HostName=10.0.1.7",))
    argv = node.argv("hostname")
    assert argv[:3] == ["ssh", "-F", str(tmp_path / "ssh_config")]
    assert argv[-5:] == ["HostName=10.0.1.7", "-T", "--", "deeplearning-worker2", "hostname"]
    assert argv[argv.index("-l") + 1] == "ubuntu"
    assert node.argv(None, terminal=True)[-3:] == ["-t", "--", "deeplearning-worker2"]


def test_control_paths_are_short_private_and_different_for_each_node(tmp_path):
    deep = tmp_path / ("x" * 100) / "ssh_config"
    paths = {Remote(deep, host, user).control_path for host in ("a", "b") for user in ("phalanx", "ubuntu")}
    assert len(paths) == 4
    assert all(len(str(path)) < 80 for path in paths)
    assert Path(paths.pop()).parent.stat().st_mode & 0o077 == 0


def test_without_ssh_it_is_named_also_when_a_connection_is_open(head, monkeypatch):
    head.run("true", timeout_s=120)
    calls = (lambda: head.run("true", timeout_s=120), lambda: head.popen("true"), lambda: head.interactive("true"))
    for call in calls:
        # Only meanwhile: the connection is closed by ssh, too.
        with monkeypatch.context() as patch, raises_code("no-program", "ssh"):
            patch.setenv("PATH", "/nowhere")
            call()


def test_run_gives_status_and_output_over_one_connection(head, bin_directory):
    assert head.run("echo out; echo err >&2", timeout_s=120).stdout == b"out\n"
    assert head.run("cat", input=b"text", timeout_s=120).stdout == b"text"
    assert head.run("exit 3", timeout_s=120, check=False).status == 3
    assert sum(" -N " in call for call in calls(bin_directory)) == 1


def test_a_failing_command_is_reported_with_its_output(head):
    with raises_code("command-failed", "`echo no >&2; exit 2`", "deeplearning-master", "2: no"):
        head.run("echo no >&2; exit 2", timeout_s=120)


def test_a_command_has_a_deadline(head):
    with pytest.raises(ClusterError, match=r"did not end within 0.2 s"):
        head.run("exec sleep 20", timeout_s=0.2)


def test_status_255_is_the_command_s_own_while_the_connection_lives(head):
    assert head.run("exit 255", timeout_s=120, check=False).status == 255


def test_status_255_without_a_connection_is_a_broken_one(head, bin_directory):
    head.connect()
    master = master_pid(head, bin_directory)
    with raises_code("connection-lost", "deeplearning-master"):
        head.run(f"kill -9 {master}; {gone(master)}; exit 255", timeout_s=120, check=False)


def test_a_login_that_breaks_says_so(head, bin_directory):
    """A session of a shared connection ends with 255 and no message when that connection breaks."""
    assert head.interactive("exit 255") == 255
    master = master_pid(head, bin_directory)
    with raises_code("connection-lost", "deeplearning-master"):
        head.interactive(f"kill -9 {master}; {gone(master)}; exit 255")


@pytest.mark.parametrize("hangup", [signal.SIG_DFL, signal.SIG_IGN], ids=["", "nohup"])
def test_a_login_whose_phalanx_is_killed_leaves_no_ssh_on_the_terminal(head, tmp_path, hangup):
    head.connect()
    pids = tmp_path / "pids"
    login = "import signal, sys; from pathlib import Path; from phalanx.ssh.remote import Remote\n"
    login += f"signal.signal(signal.SIGHUP, signal.Handlers({int(hangup)}))\n"
    login += "Remote(Path(sys.argv[1]), 'deeplearning-master').interactive(sys.argv[2])"
    command = f"echo $PPID $$ >{pids}.new; mv {pids}.new {pids}; exec sleep 600"
    with subprocess.Popen([sys.executable, "-c", login, str(head.config), command]) as phalanx:
        until(pids.exists, "the command")
        ssh, remote = map(int, pids.read_text().split())
        left = identified([ssh])
        try:
            phalanx.kill()
            assert wait_until_gone(left, timeout_s=60) == set()
        finally:
            os.kill(remote, signal.SIGKILL)  # which sshd would end


def test_a_stale_socket_is_replaced(head, bin_directory):
    head.connect()
    os.kill(master_pid(head, bin_directory), signal.SIGKILL)
    assert head.run("echo again", timeout_s=120).stdout == b"again\n"


def test_closing_ends_every_connection(head, bin_directory):
    head.connect()
    pid = master_pid(head, bin_directory)
    module.close_all(head.config)
    assert not head.connected()
    assert not head.control_path.exists()
    subprocess.run(["sh", "-c", gone(pid)], check=True, timeout=120)


def test_a_connection_leaves_no_lock_file(head):
    head.connect()
    assert not list(head.control_path.parent.glob(f"{head.control_path.name}.*"))


def test_a_lock_whose_file_its_holder_removed_is_taken_again(tmp_path):
    """Two wait for one lock file; the first removes it, and the second must not run at the same time as a third."""
    inside, most = [], []

    def enter():
        with module._lock_file(tmp_path / "lock"):
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.002)
            inside.pop()

    threads = [threading.Thread(target=enter) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert most == [1] * 12
    assert not list(tmp_path.iterdir())


def test_the_user_s_runtime_directory_is_preferred_where_it_is_one(tmp_path, monkeypatch):
    with tempfile.TemporaryDirectory(dir="/tmp") as runtime:
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        assert module.control_directory() == Path(runtime) / "phalanx"
        Path(runtime).chmod(0o755)
        assert module.control_directory() == Path(f"/tmp/phalanx-{os.getuid()}")


def test_a_control_directory_of_another_user_is_refused_and_does_not_prevent_closing(tmp_path, monkeypatch):
    foreign = tmp_path / "foreign"
    foreign.mkdir(mode=0o777)
    foreign.chmod(0o777)
    monkeypatch.setattr(module, "_control_directories", lambda: [foreign])
    with raises_code("unsafe-directory"):
        module.control_directory()
    module.close_all(tmp_path / "ssh_config")


def test_closing_goes_on_without_ssh(tmp_path, monkeypatch):
    node = Remote(tmp_path / "ssh_config", "deeplearning-master")
    monkeypatch.setenv("PATH", "/nowhere")
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(node.control_path))
        module.close_all(node.config)
    assert not node.control_path.exists()


def test_a_reason_for_silence_ends_the_wait(head, bin_directory, monkeypatch):
    monkeypatch.setattr(module, "_PATIENCE_S", 0.05)
    (bin_directory / "ssh").write_text("#!/bin/sh\nexec sleep 600\n")

    def repair(error):
        if isinstance(error, Silent):
            raise ClusterError("this machine may not reach it")
        return False

    with pytest.raises(ClusterError, match="may not reach it"):
        Remote(head.config, head.host, repair=repair).connect(timeout_s=600)


def test_a_refused_host_is_repaired_once(head, bin_directory, monkeypatch):
    monkeypatch.setattr(module, "_PATIENCE_S", 600.0)
    refusal = bin_directory / "refusal"
    refusal.write_text("No ED25519 host key is known for x.\nHost key verification failed.\n")
    seen = []

    def repair(error):
        seen.append(type(error))
        refusal.unlink()
        return True

    repaired = Remote(head.config, head.host, repair=repair)
    assert repaired.run("echo in", timeout_s=120).stdout == b"in\n"
    assert seen == [HostRefused]


def test_what_can_t_be_repaired_is_raised(head, bin_directory):
    (bin_directory / "refusal").write_text("ssh: connect to host x port 22: Connection refused\n")
    with pytest.raises(ConnectionLost, match=r"nothing listens there"):
        Remote(head.config, head.host, repair=lambda error: False).connect()


def test_the_proxys_message_takes_precedence_over_sshs(head, bin_directory, monkeypatch):
    monkeypatch.setattr(module, "_LISTENS_AGAIN_AFTER_S", ())
    (bin_directory / "proxy").write_text("phalanx: [Errno 111] Connection refused\n")
    message = "mm_receive_fd: recvmsg: expected received 1 got 0\nproxy dialer did not pass back a connection\n"
    (bin_directory / "refusal").write_text(message)
    with pytest.raises(ConnectionLost, match=r"nothing listens there"):
        head.connect()


def test_an_sshd_that_is_briefly_unavailable_is_awaited(head, bin_directory, monkeypatch):
    refusal = bin_directory / "refusal"
    refusal.write_text("kex_exchange_identification: read: Connection reset by peer\n")

    def pauses():
        yield 0.0
        refusal.unlink()
        yield 0.0

    monkeypatch.setattr(module, "_LISTENS_AGAIN_AFTER_S", pauses())
    head.connect()
    assert len(calls(bin_directory)) == 2


@pytest.mark.parametrize("connected", [False, True])
def test_ctrl_c_while_ssh_starts_ends_that_ssh(head, bin_directory, monkeypatch, connected):
    """Python raises KeyboardInterrupt inside Popen, after the process has started."""
    if connected:
        head.connect()
    else:
        (bin_directory / "ssh").write_text("#!/bin/sh\nexec sleep 60\n")
    started = []

    class Interrupted(subprocess.Popen):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            started.append(self)
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "Popen", Interrupted)
        with pytest.raises(KeyboardInterrupt):
            head.run("exec sleep 600", timeout_s=120)
    (ssh,) = started
    assert ssh.wait(timeout=120) == -signal.SIGKILL


@pytest.mark.parametrize(
    ("shown", "kind", "message"),
    [
        ("Host key verification failed.", HostRefused, "not certified"),
        ("phalanx@x: Permission denied (publickey).", LoginRefused, "does not accept this machine's key"),
        ("ssh: connect to host x port 22: Connection timed out", ConnectionLost, "does not answer"),
        ("ssh: Could not resolve hostname x: Name or service not known", ConnectionLost, "name is unknown"),
        ("phalanx: [Errno 111] Connection refused\nmm_receive_fd: recvmsg", NotListening, "nothing listens there"),
        ("kex_exchange_identification: Connection closed by remote host", NotListening, "closes each connection"),
        (
            "phalanx: 54.0.0.1 belongs to no running instance\nproxy dialer did not pass back a connection",
            NotListening,
            "its address belongs to no running instance",
        ),
        ("", ConnectionLost, "without a message"),
    ],
)
def test_what_ssh_says_becomes_one_sentence(shown, kind, message):
    error = classify("deeplearning-master", shown)
    assert type(error) is kind
    assert message in error.message
    assert error.hint
