"""The agent inside user data: it is small enough, and runs on every Python that a node may have."""

from __future__ import annotations

import base64
import json
import lzma
import os
import random
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from troposphere import GetAtt, Ref, Sub

from phalanx.template import userdata
from phalanx.template.userdata import strip

CONFIG = {
    "format": "1",
    "stack_id": "arn:aws:cloudformation:us-east-1:123456789012:stack/demo/1",
    "domain": "amazonaws.com",
    "role": "head",
    "queue_url": "http://127.0.0.1/q",
    "table": "t",
    "log_group": "l",
    "workers": "3",
    "min": "2",
    "node_timeout_s": "600",
    "shared": "/efs",
    "file_system": "fs-1",
    "slots": "0",
    "efa": "",
    "block": "",
    "metrics": "",
    "gpus": "",
    "ssh_public_key": "ssh-ed25519 AAAA who 'ever' \"says\" ${what} = $(id)",
    "wait_handle": "",
    "networks": "10.0.0.0/24,10.0.16.0/20",
    "worker_role": "AROA0123456789ABCDEFG",
    "address": "eipalloc-0123456789abcdef0",
    "job_role": "arn:aws:iam::123456789012:role/demo-JobRole",
}


def pythons() -> list[str]:
    """Return the oldest and the newest Python that a node may have, if installed here, and this one."""
    found = [sys.executable]
    for version in ("3.9", "3.13"):
        installed = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python3"))
        found += [str(path) for path in installed[-1:]]
    return found


def test_references_of_the_template_are_named_inside_sub():
    config = {"cluster": Ref("AWS::StackName"), "queue": GetAtt("Q", "Arn"), "group": Sub("${A}-b"), "key": "a${b}"}
    text, variables = userdata.user_data(config).to_dict()["Fn::Base64"]["Fn::Sub"]
    lines = text.splitlines()
    assert "#cluster=${AWS::StackName}" in lines
    assert "#queue=${Q.Arn}" in lines
    assert "#group=${Group}" in lines
    assert "#key=a${!b}" in lines
    assert variables["Group"] == {"Fn::Sub": "${A}-b"}
    assert set(variables) == {"Group"}


def test_a_setting_can_not_bring_a_line_of_its_own():
    with pytest.raises(ValueError, match="line break"):
        userdata.render({**CONFIG, "shared": "x\nimport evil"})


def test_the_payload_needs_no_quoting_and_no_escape():
    stage_1 = userdata.first_stage().rpartition("#agent=")[2]
    stage_2, script = "".join(userdata.parameters("echo").values()).split(":")
    assert not set(stage_1 + stage_2 + script) & set("'\"\\ \n:,$")


def test_user_data_has_room_left():
    assert len(userdata.render({**CONFIG, "wait_handle": "u" * 800})) < userdata.LIMIT_BYTES - 2560


def elsewhere(cache: Path) -> str:
    """Pack the agent in another process, where sets have another order."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from phalanx.template import userdata; print(*userdata._stages(), sep=':', end='')",
        ],
        env={**os.environ, "PYTHONHASHSEED": "1", "XDG_CACHE_HOME": str(cache)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stdout


def test_the_payload_is_the_same_in_another_process_and_is_packed_once(tmp_path):
    packed = elsewhere(tmp_path)
    assert packed == ":".join(userdata._stages())
    (kept,) = (tmp_path / "phalanx").iterdir()
    kept.write_text("first:second")
    assert elsewhere(tmp_path).endswith("first:second")
    kept.write_text("no two stages")
    assert elsewhere(tmp_path) == packed
    assert kept.read_text() in packed


def test_other_sources_are_packed_again(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    packed, source = userdata._stages(), userdata._source
    monkeypatch.setattr(userdata, "_source", lambda name: source(name) + "\nMORE = 1\n" * (name == "roster"))
    userdata._stages.cache_clear()
    assert userdata._stages() != packed
    monkeypatch.undo()
    userdata._stages.cache_clear()
    assert userdata._stages() == packed


class Cloud(BaseHTTPRequestHandler):
    """Stands in for the metadata service, CloudFormation, the table and a wait handle, for stage 1."""

    parameters: dict[str, str]
    offline: list[int]
    """Statuses with which the next calls of an API are refused."""
    signals: list[dict]

    def answer(self, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def do_GET(self) -> None:
        if self.path.endswith("/document"):
            self.answer(
                json.dumps(dict.fromkeys(("instanceId", "privateIp", "availabilityZone", "instanceType"), "i-1"))
            )
            return
        keys = {"AccessKeyId": "AKID", "SecretAccessKey": "s", "Token": "t", "Expiration": "2099-01-01T00:00:00Z"}
        self.answer("role" if self.path.endswith("security-credentials/") else json.dumps(keys))

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path == "/handle":
            assert self.headers.get("Content-Type") is None
            self.signals.append(json.loads(body))
        self.answer("token")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.offline:
            self.send_response(self.offline.pop(0))
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if self.headers.get("X-Amz-Target") == "AmazonSQS.SendMessage":
            self.signals.append(json.loads(json.loads(body)["MessageBody"]))
        member = "<member><ParameterKey>{}</ParameterKey><ParameterValue>{}</ParameterValue></member>"
        given = "".join(member.format(key, escaped(value)) for key, value in self.parameters.items())
        xml = f'<R xmlns="http://x/"><Stacks><member><Parameters>{given}</Parameters></member></Stacks></R>'
        self.answer("{}" if self.headers.get("X-Amz-Target") else xml)

    def log_message(self, *_) -> None:
        pass


def escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


@pytest.fixture
def cloud():
    handler = type("Here", (Cloud,), {"signals": [], "parameters": {}, "offline": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield handler, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def run_user_data(
    python: str, directory: Path, url: str, boot: str = "", **changes: str
) -> subprocess.CompletedProcess[str]:
    """Run the rendered script as cloud-init would, in a separate root; `check` ends before any change."""
    script = directory / "part-001"
    script.write_bytes(userdata.render({**CONFIG, **changes}, boot))
    environment = {
        "PATH": os.environ["PATH"],
        "PHALANX_ROOT": str(directory / "root"),
        "AWS_ENDPOINT_URL": url,
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": url,
    }
    return subprocess.run(
        [python, "-IS", str(script), "check"], env=environment, capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize("python", pythons())
def test_it_unpacks_and_completes_itself(python, tmp_path, cloud):
    handler, url = cloud
    boot = "echo hello # " + random.Random(1).randbytes(20_000).hex()
    agent = userdata.parameters(boot)
    assert "Agent10" in agent
    # CloudFormation documents no order.
    handler.parameters = {"Workers": "3", **dict(reversed(agent.items()))}
    done = run_user_data(python, tmp_path, url, boot=boot)
    assert (done.stdout, done.stderr, done.returncode) == ("phalanx: the agent is complete\n", "", 0)
    here = tmp_path / "root/opt/phalanx"
    config = json.loads((here / "config.json").read_text())
    assert {key: config[key] for key in CONFIG} == CONFIG
    assert (here / "config.json").stat().st_mode & 0o777 == 0o600
    script = here / "agent/phalanx/node/boot-script"
    assert (script.read_text(), script.stat().st_mode & 0o777) == (boot, 0o700)
    assert {path.stem for path in (here / "agent/phalanx/node").glob("*.py")} == {*userdata.STAGE_1, *userdata.STAGE_2}
    assert_all_is_light(python, here / "agent")


def assert_all_is_light(python: str, agent: Path) -> None:
    """Check that every module can be imported there, and that none imports what takes much CPU time."""
    names = [f"phalanx.node.{path.stem}" for path in (agent / "phalanx/node").glob("*.py") if path.stem != "__main__"]
    script = f"import sys; sys.path.insert(0, {str(agent)!r}); import {', '.join(names)}; print(*sys.modules)"
    done = subprocess.run([python, "-IS", "-c", script], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert not {"traceback", "xml"} & set(done.stdout.split())


def test_what_a_new_machine_is_refused_is_requested_again(tmp_path, cloud):
    """Such as 403 without AWS's words, which no list of passing errors has."""
    handler, url = cloud
    handler.parameters = userdata.parameters()
    handler.offline = [403, 404, 403]
    done = run_user_data(sys.executable, tmp_path, url)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "phalanx: the agent is complete")
    assert done.stdout.count("trying again") == 3


def test_a_machine_that_is_offline_for_long_says_so_and_goes_on(tmp_path, cloud):
    """A replaced head has nobody to replace it."""
    handler, url = cloud
    handler.parameters = userdata.parameters()
    handler.offline = [403] * 8
    done = run_user_data(sys.executable, tmp_path, url, wait_handle=f"{url}/handle", node_timeout_s="2")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "phalanx: the agent is complete")
    assert "boot step 'agent' failed: the rest of the agent: DescribeStacks: HTTP 403" in handler.signals[0]["Reason"]


def test_modules_of_another_version_are_not_kept(tmp_path, cloud):
    """An image made from a node has them, and a machine that restarted while it wrote them has some."""
    handler, url = cloud
    handler.parameters = userdata.parameters()
    here = tmp_path / "root/opt/phalanx/agent/phalanx/node"
    here.mkdir(parents=True)
    for name in ("boot.py", "head.py"):
        (here / name).write_text("raise SystemExit('old')")
    (here / "boot-script").write_text("echo old")
    (here / "complete").write_text("0" * 64)
    done = run_user_data(sys.executable, tmp_path, url)
    assert (done.returncode, done.stdout) == (0, "phalanx: the agent is complete\n")
    assert "SystemExit('old')" not in (here / "head.py").read_text()
    assert (here / "boot-script").read_text() == "", "this cluster has none"


def test_a_changed_stage_2_is_refused_and_reported(tmp_path, cloud):
    handler, url = cloud
    evil = base64.b64encode(lzma.compress(b"boot\0print('evil')")).decode()
    handler.parameters = {"Agent01": evil}
    done = run_user_data(sys.executable, tmp_path, url, wait_handle=f"{url}/handle")
    assert done.returncode == 1
    assert "SHA-256" in done.stdout and done.stderr == ""
    assert not (tmp_path / "root/opt/phalanx/agent/phalanx/node/boot.py").exists()
    (signal,) = handler.signals
    assert signal["Status"] == "FAILURE" and "boot step 'agent' failed" in signal["Reason"]


def test_a_changed_boot_script_is_refused(tmp_path, cloud):
    handler, url = cloud
    handler.parameters = userdata.parameters("echo evil")
    done = run_user_data(sys.executable, tmp_path, url, boot="echo good", wait_handle=f"{url}/handle")
    assert done.returncode == 1 and "SHA-256" in done.stdout
    assert not (tmp_path / "root/opt/phalanx/agent/phalanx/node/boot-script").exists()


def test_a_stack_without_an_agent_is_reported(tmp_path, cloud):
    handler, url = cloud
    done = run_user_data(sys.executable, tmp_path, url)
    assert (done.returncode, done.stderr) == (1, "")
    assert "SHA-256" in done.stdout
    (reported,) = handler.signals
    assert reported["kind"] == "failed" and reported["instance_id"] == "i-1" and "SHA-256" in reported["output"]


def test_a_wrong_setting_is_reported_with_its_place(tmp_path, cloud):
    handler, url = cloud
    done = run_user_data(sys.executable, tmp_path, url, workers="three", wait_handle=f"{url}/handle")
    assert (done.returncode, done.stderr) == (1, "")
    (signal,) = handler.signals
    assert "ValueError" in signal["Reason"] and "settings.py" in signal["Reason"]


SOURCE = '''
"""About."""


class Thing:
    """Doc."""

    number: int = 1

    def grow(self, amount: int) -> str:
        """Doc."""
        return f"{self.number + amount} # no comment"  # a comment


class Empty(Exception):
    """Doc."""
'''


def test_what_only_readers_need_is_stripped():
    stripped = strip(SOURCE)
    assert "oc." not in stripped and "About" not in stripped and "a comment" not in stripped
    space: dict = {}
    exec(stripped, space)
    assert space["Thing"]().grow(2) == "3 # no comment" and issubclass(space["Empty"], Exception)
