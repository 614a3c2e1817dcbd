"""Programs of others that make machines on AWS bring up and terminate real nodes here, unchanged."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import account
import local_clouds
import other_programs
import pytest
from fleet_fakes import IMAGE
from terminals import Terminal, a_terminal

pytestmark = [pytest.mark.long, pytest.mark.cluster]

CLIENTS = Path(__file__).parent / "clients"
RAY, SKYPILOT = ("ray[default]==2.60.0", "boto3"), ("skypilot[aws]==0.14.1",)


@pytest.fixture(scope="module")
def terminal() -> Iterator[Terminal]:
    for packages in (RAY, SKYPILOT):
        other_programs.installed(*packages)  # before the local cloud starts, which ends when nobody uses it
    with a_terminal("") as made:
        made.phalanx("local", "start")
        local_clouds.api(made, "ec2").import_key_pair(KeyName="mine", PublicKeyMaterial=account.PUBLIC_KEY.encode())
        yield made


def steps(terminal: Terminal, client: str, packages: tuple[str, ...], key: str, home: Path) -> dict[str, Any]:
    """Run a client in its environment; return what each of its steps came to."""
    there = local_clouds.endpoint(terminal)
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "AWS_ENDPOINT_URL": there["url"],
        "AWS_ACCESS_KEY_ID": there["access_key_id"],
        "AWS_SECRET_ACCESS_KEY": there["secret_access_key"],
        "AWS_DEFAULT_REGION": "us-east-1",
        "SKYPILOT_DISABLE_USAGE_COLLECTION": "1",
    }
    command = [other_programs.installed(*packages) / "python", CLIENTS / client, IMAGE, key]
    done = subprocess.run(
        command, cwd=home, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"step"')]
    found = {line["step"]: line.get("error") or line["result"] for line in lines}
    print(f"JUDGED {packages[0]}: {len(found)} steps, failed: {[line['step'] for line in lines if 'error' in line]}")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return found


def running(terminal: Terminal) -> int:
    pages = local_clouds.api(terminal, "ec2").describe_instances()["Reservations"]
    return sum(
        one["State"]["Name"] not in ("terminated", "shutting-down") for page in pages for one in page["Instances"]
    )


def test_rays_node_provider_brings_up_a_head_and_a_worker(terminal: Terminal, tmp_path: Path):
    key = tmp_path / "mine.pem"
    key.touch(0o600)
    found = steps(terminal, "ray_cluster.py", RAY, str(key), tmp_path)
    assert (found["create_node head"], found["create_node worker"], found["non_terminated_nodes"]) == ("1", "1", "2")
    assert (found["is_running"], found["gone"]) == ("True", "True")
    assert found["reused"] == "True", "a node that it had stopped"
    assert running(terminal) == 0


def test_skypilots_provisioner_stops_and_resumes_a_cluster(terminal: Terminal, tmp_path: Path):
    found = steps(terminal, "skypilot_cluster.py", SKYPILOT, "mine", tmp_path)
    assert (found.pop("get_cluster_info"), found.pop("resume")) == ("2", "2")
    assert found.pop("same_private_addresses") == "True"
    assert found.pop("query_instances").count("UP") == 4
    assert found.pop("query_stopped").count("STOPPED") == 4
    assert not [error for error in found.values() if "Error" in error and "ProvisionConfig" not in error]
    assert running(terminal) == 0
