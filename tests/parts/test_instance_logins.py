"""Logins through Session Manager: the local cloud's part, which asks what the agent needs, and the ProxyCommand."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from error_codes import raises_code
from fleet_fakes import IMAGE, Cloud, cloud, until

from localcloud.ec2 import fleet
from localcloud.network.reach import Way
from localcloud.network.sessions import Sessions
from phalanx.ssh import session_manager

RIGHTS = (
    "ssm:UpdateInstanceInformation",
    *(f"ssmmessages:{verb}{kind}Channel" for verb in ("Create", "Open") for kind in ("Control", "Data")),
)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    with cloud(tmp_path_factory.mktemp("cloud")) as made:
        yield made


class Site:
    """An instance whose role has rights, in a network with ways."""

    def __init__(self, local: Cloud, *rights: str) -> None:
        granted = {"Effect": "Allow", "Action": list(rights), "Resource": "*"}
        profile = local.profile(local.role("ec2.amazonaws.com", granted))
        _, (subnet,) = local.network()
        asked = {"ImageId": IMAGE, "MinCount": 1, "MaxCount": 1, "InstanceType": "c5.large", "SubnetId": subnet}
        made = local.client("ec2").run_instances(**asked, IamInstanceProfile={"Name": profile})
        self.instance_id = made["Instances"][0]["InstanceId"]
        until(lambda: any(one.id == self.instance_id and one.state == "running" for one in fleet.current().live()))
        self.ways = {"ssm", "ssmmessages"}
        self.connected: list[tuple[Any, ...]] = []
        local.runner.connect_inside = lambda *asked: self.connected.append(asked) or socket.socket()  # type: ignore[attr-defined]
        self.sessions = Sessions(local.context, lambda _vpc, _address, service: Way() if service in self.ways else None)

    def connect(self) -> None:
        self.sessions.connect(self.instance_id, 22, 5.0).close()


def test_an_instance_whose_agent_can_work_is_connected_to_its_own_port(local: Cloud):
    site = Site(local, *RIGHTS)
    site.connect()
    assert site.connected == [(site.instance_id, 22, 5.0)]


@pytest.mark.parametrize("right", RIGHTS)
def test_each_right_of_the_role_is_needed(local: Cloud, right: str):
    with pytest.raises(LookupError, match=f"TargetNotConnected: i-.* is not connected .its role may not {right}."):
        Site(local, *(one for one in RIGHTS if one != right)).connect()


@pytest.mark.parametrize("service", ["ssm", "ssmmessages"])
def test_each_endpoint_of_the_agent_is_needed(local: Cloud, service: str):
    site = Site(local, *RIGHTS)
    site.ways.remove(service)
    with pytest.raises(LookupError, match=f"it has no way to {service}\\)"):
        site.connect()


def test_an_instance_that_does_not_run_is_none(local: Cloud):
    site = Site(local, *RIGHTS)
    local.client("ec2").terminate_instances(InstanceIds=[site.instance_id])
    with pytest.raises(LookupError, match="belongs to no running instance"):
        site.connect()


def program(directory: Path, name: str, text: str = "") -> None:
    path = directory / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def proxy(path: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-IS", session_manager.__file__, *arguments]
    given = {"PATH": str(path), **env}
    return subprocess.run(argv, env=given, input="SSH-2.0", capture_output=True, text=True, timeout=120)


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A directory with both programs; `aws` prints its arguments and then what it is given."""
    made = tmp_path / "bin"
    made.mkdir()
    program(made, "aws", '/bin/echo "$@"; /bin/echo trouble >&2; exec /bin/cat')
    program(made, "session-manager-plugin")
    return made


def test_the_aws_cli_gets_the_arguments_that_aws_documents_and_the_connection(programs: Path):
    done = proxy(programs, "eu-west-3", "i-0123456789abcdef0", "22")
    document = "--document-name AWS-StartSSHSession --parameters portNumber=22"
    start = "ssm start-session --region eu-west-3 --target i-0123456789abcdef0"
    assert done.stdout == f"{start} {document}\nSSH-2.0"
    assert done.returncode == 0


def test_what_it_says_reaches_phalanx_where_ssh_shows_nothing(programs: Path, tmp_path: Path):
    (tmp_path / "says").write_text("ssh: before\n")
    done = proxy(programs, "eu-west-3", "i-0123456789abcdef0", "22", PHALANX_PROXY_ERRORS=str(tmp_path / "says"))
    assert ((tmp_path / "says").read_text(), done.stderr) == ("ssh: before\ntrouble\n", "")


@pytest.mark.parametrize("missing", ["aws", "session-manager-plugin"])
def test_a_missing_program_is_named_with_where_to_find_it(programs: Path, missing: str, monkeypatch):
    (programs / missing).unlink()
    done = proxy(programs, "eu-west-3", "i-0123456789abcdef0", "22")
    assert done.returncode == 1
    assert done.stderr.startswith(f"phalanx: the command `{missing}` is not installed, and ssh reaches this cluster")
    assert "install it: https://docs.aws.amazon.com/" in done.stderr
    monkeypatch.setenv("PATH", str(programs))
    with raises_code("no-program", f"`{missing}`"):
        session_manager.require_programs()


@pytest.mark.parametrize("host", ["54.0.0.1", "-oProxyCommand=x", "i-1;reboot", ""])
def test_only_the_id_of_an_instance_is_a_target(programs: Path, host: str):
    done = proxy(programs, "eu-west-3", host, "22")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("usage")


def test_it_loads_nothing_of_phalanx():
    code = f"import sys, runpy; runpy.run_path({session_manager.__file__!r}); print('phalanx' in sys.modules)"
    env = {"PATH": os.environ["PATH"]}
    done = subprocess.run([sys.executable, "-IS", "-c", code], env=env, capture_output=True, text=True, timeout=120)
    assert done.stdout == "False\n"
