"""A local cloud's nodes without its API, in a separate process that is controlled over a pipe."""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from processes import Process, descendants, identified, process, wait_until_gone
from shared import SHARED

from localcloud.nodes import userns

SOURCE = Path(__file__).parents[2] / "src"
DRIVER = Path(__file__).parents[1] / "nodes/node_driver.py"
DIAL = SOURCE / "localcloud/network/dial.py"
KINDS = ("range-root", "range-user", "single-user")
_users = itertools.count()


class Lab:
    """A local cloud in a separate process."""

    def __init__(self, mode: str, user: str | None) -> None:
        self.mode = mode
        self.user = user
        self.state = Path(tempfile.mkdtemp(prefix="phx-nodes-"))
        self.key = self.state / "key"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.key], check=True)
        shared = self.state / "efs/fs-1"
        shared.mkdir(parents=True)
        command, source = [sys.executable, str(DRIVER), str(self.state), mode], SOURCE
        if os.geteuid() == 0 and not user:
            os.chown(shared, *[userns.root_of_nodes(mode)] * 2)
        if user:
            # This checkout and its interpreter may be in a directory that only root can enter.
            source = self.state / "source"
            shutil.copytree(SOURCE, source)
            # What the driver imports of others: the system's Python may have none.
            shutil.copytree(Path(yaml.__file__).parent, source / "yaml", ignore=shutil.ignore_patterns("*.so"))
            command[:2] = ["/usr/bin/python3", shutil.copy(DRIVER, source)]
            subprocess.run(["chown", "-R", user, self.state], check=True)
        self.process = subprocess.Popen(
            command,
            cwd="/",
            user=user,
            group=user,
            extra_groups=[] if user else None,
            env={**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.answer() == "ready"

    def answer(self) -> Any:
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, f"{DRIVER.name} ended with status {self.process.wait(60)}; what it said is in the captured stderr"
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["ok"]

    def do(self, call: str, **arguments: Any) -> Any:
        assert self.process.stdin
        print(json.dumps({"call": call, **arguments}), file=self.process.stdin, flush=True)
        return self.answer()

    def boot(
        self, number: int, script: str = "", vpc: str = "vpc-1", address: str = "", vcpus: int = 2, **more: Any
    ) -> str:
        """Boot node `number`, which installs our key and runs `script`; return its id. `more` is of its Machine."""
        address = address or f"10.0.1.{10 + number}"
        instance_id = f"i-{number:017x}"
        machine = {
            "instance_id": instance_id,
            "vpc_id": vpc,
            "vpc_cidr": "10.0.0.0/16",
            "address": address,
            "hostname": "ip-" + address.replace(".", "-"),
            "instance_type": "c5.large",
            "vcpus": vcpus,
            "memory_mib": 512,
            "user_data": base64.b64encode(self.user_data(script).encode()).decode(),
            "domain": "us-east-1.amazonaws.com",
            "zone": "us-east-1a",
            "file_systems": {"fs-1": "10.0.9.9"},
            **more,
        }
        self.do("boot", machine=machine)
        return instance_id

    def user_data(self, script: str) -> str:
        lines = [
            "#!/bin/sh",
            "mkdir -p /root/.ssh && chmod 700 /root/.ssh",
            f"echo '{self.key.with_suffix('.pub').read_text().strip()}' > /root/.ssh/authorized_keys",
            f"cat > /root/.ssh/id_ed25519 <<'END'\n{self.key.read_text()}END",
            "chmod 600 /root/.ssh/id_ed25519",
            "printf 'StrictHostKeyChecking no\\nUserKnownHostsFile /dev/null\\n' > /etc/ssh/ssh_config.d/test.conf",
            script,
        ]
        return "\n".join(lines) + "\n"

    def ssh(self, instance_id: str, command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command as root on the node, through the dialer."""
        proxy = f"{sys.executable} -IS {DIAL} {self.state}/dial.sock %h %p"
        options = ("StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR", "BatchMode=yes")
        argv = ["ssh", "-F", "none", "-i", str(self.key), "-o", "ProxyUseFdpass=yes", "-o", f"ProxyCommand={proxy}"]
        argv += [word for option in options for word in ("-o", option)]
        done = subprocess.run(
            [*argv, f"root@{instance_id}", command],
            capture_output=True,
            text=True,
            timeout=300,
            stdin=subprocess.DEVNULL,
        )
        assert not check or done.returncode == 0, done.stderr
        return done

    def wait_booted(self, instance_id: str) -> str:
        """Wait until the user data has run and sshd answers; return the console log."""
        console = self.state / "nodes" / instance_id / "console.log"
        wait(lambda: "user data ended" in console.read_text(), f"user data of {instance_id}")
        wait(lambda: self.ssh(instance_id, "true", check=False).returncode == 0, f"ssh to {instance_id}")
        return console.read_text()

    def pid_of(self, instance_id: str) -> int:
        """Return the pid on this machine of the node's process 1."""
        return next(state["pid"] for state in self.do("nodes") if state["instance_id"] == instance_id)

    def process_of(self, instance_id: str) -> Process:
        """Return the node's process 1; (0, 0) while it has none."""
        return process(self.pid_of(instance_id)) or Process(0, 0)

    def reboot(self, instance_id: str, ask: Callable[[], object] | None = None) -> None:
        """Reboot a node, by default through its local cloud, and wait until it accepts logins again."""
        before = self.process_of(instance_id)
        if ask:
            ask()
        else:
            self.do("reboot", instance_id=instance_id)
        wait(lambda: self.process_of(instance_id) not in (Process(0, 0), before), "another process 1")
        wait(lambda: self.ssh(instance_id, "true", check=False).returncode == 0, "sshd")
        assert not wait_until_gone({before})

    def processes(self) -> set[Process]:
        """Return its process and all descendants; empty once it has ended."""
        return identified(descendants(self.process.pid)) if self.process.poll() is None else set()

    def stop(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        assert self.process.wait(60) == 0

    def discard(self) -> None:
        processes = self.processes()
        self.process.kill()
        self.process.wait(60)
        assert not wait_until_gone(processes)
        if self.process.stdout and self.process.stdin:
            self.process.stdout.close()
            self.process.stdin.close()
        shutil.rmtree(self.state, ignore_errors=True)


def wait(met: Callable[[], bool], what: str, timeout_s: float = 240) -> None:
    deadline = time.monotonic() + timeout_s
    while not met():
        assert time.monotonic() < deadline, f"waited {timeout_s} s for {what}"
        time.sleep(0.01)


@contextmanager
def a_lab(mode: str, user: str | None = None) -> Iterator[Lab]:
    lab = Lab(mode, user)
    try:
        yield lab
    finally:
        lab.discard()


@contextmanager
def an_ordinary_user() -> Iterator[str]:
    if os.geteuid():
        pytest.skip("making a user needs root")
    name = f"phx{os.getpid()}x{next(_users)}"
    subprocess.run(["useradd", "-m", name], check=True, capture_output=True)
    yield name
    subprocess.run(["userdel", "-r", "-f", name], check=True, capture_output=True)


@contextmanager
def a_lab_of(kind: str) -> Iterator[Lab]:
    """Make a lab of one of KINDS: the mode, and the user who runs it."""
    mode, _, who = kind.partition("-")
    if who == "root" and os.geteuid():
        pytest.skip("needs root")
    with ExitStack() as stack:
        user = stack.enter_context(an_ordinary_user()) if who == "user" else None
        yield stack.enter_context(a_lab(mode, user))


@pytest.fixture(scope="session", params=KINDS)
def shared_lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    with ExitStack() as SHARED["shared_lab"]:
        yield SHARED["shared_lab"].enter_context(a_lab_of(request.param))


@pytest.fixture
def lab(shared_lab: Lab) -> Lab:
    return shared_lab


@pytest.fixture(scope="session")
def pair(shared_lab: Lab) -> tuple[str, str]:
    """Two nodes that are up, and stay up."""
    first, second = shared_lab.boot(1, "echo out of node one"), shared_lab.boot(2, vcpus=8)
    shared_lab.wait_booted(first)
    shared_lab.wait_booted(second)
    return first, second
