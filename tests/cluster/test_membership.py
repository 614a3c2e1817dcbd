"""Members die, come back, and change in number: every node has a correct roster, and former members are refused."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time

import pytest
from benchmarks.drill.strikes import AGENT_COMMAND
from local_clouds import api, break_on_purpose, wait_for_roster
from processes import descendants, identified, process, process_file, wait_until_gone
from terminals import a_cluster

from phalanx.node.roster import Roster

pytestmark = pytest.mark.cluster

# The boot script fails once where a test wants it. A replacement head waits a tenth of node_timeout before it ends.
BOOT = "boot: |\n  if rm /efs/.fail-next-boot; then exit 1; fi\n"
SPEC = f"name: members\ncloud: local\nnodes: 3\nmin: 1\ntype: c5.large\nkeep: no\nnode_timeout: 60s\n{BOOT}"
# For all waits.
REPLACED_S = 400.0
THRASHES_S = 40.0
KEPT = "/efs/.kept"


@pytest.fixture(scope="module")
def terminal():
    """Three nodes that these tests may kill."""
    with a_cluster(SPEC) as terminal:
        yield terminal


def members(terminal) -> dict[str, dict]:
    return {node["name"]: node for node in json.loads(terminal.phalanx("nodes", "--json").stdout)}


def named(nodes: list[dict]) -> list[tuple[str, str]]:
    return [(node["name"], node["instance_id"]) for node in nodes]


def kill(terminal, name: str, **how: object) -> str:
    """Kill a node; return its instance id."""
    victim = members(terminal)[name]["instance_id"]
    break_on_purpose(terminal, kill={"instance_id": victim, **how})
    return victim


def agent_of(terminal, instance_id: str) -> list[int]:
    """Return the pids on this machine of a node's agent, which is a fork of its user data; the oldest first."""
    nodes = json.loads(terminal.phalanx("local", "status", "--json").stdout)["nodes"]
    (init,) = (node["pid"] for node in nodes if node["instance_id"] == instance_id)
    found = identified(pid for pid in descendants(init) if b"/scripts/part-001" in process_file(pid, "cmdline"))
    return [one.pid for one in sorted(found, key=lambda one: one.started_ticks)]


def wait_for(terminal, name: str, state: str) -> dict[str, dict]:
    def is_so(roster: Roster) -> bool:
        return name in {node.name for node in (roster.silent if state == "silent" else roster.nodes)}

    wait_for_roster(terminal, is_so, REPLACED_S)
    return members(terminal)


def wait_for_replacement(terminal, name: str, victim: str) -> dict:
    def is_so(roster: Roster) -> bool:
        return (node := roster.find(name)) is not None and node.instance_id != victim

    node = wait_for_roster(terminal, is_so, REPLACED_S).find(name)
    found = members(terminal)[name]
    assert node and (found["instance_id"], found["state"]) == (node.instance_id, "ready")
    return found


def test_a_worker_that_thrashes_is_silent_and_then_the_same_node_again(terminal):
    """Nothing of its agent runs for a while, as on a machine that swaps, and its port 22 answers."""
    before = members(terminal)
    keys = terminal.on("worker2", "cat /etc/ssh/ssh_host_ed25519_key.pub /etc/ssh/phalanx/id_ed25519.pub")
    job_id = terminal.phalanx("run", "--detach", "--launcher", "exec", "--", "sleep", "300").stdout.strip()
    agent = agent_of(terminal, before["deeplearning-worker2"]["instance_id"])
    assert agent
    frozen_at = time.monotonic()
    try:
        for pid in agent:
            os.kill(pid, signal.SIGSTOP)
        during = wait_for(terminal, "deeplearning-worker2", "silent")
        assert "silent    deeplearning-worker2: no sign of life" in terminal.phalanx("status").stdout
        ended = wait_for_state(terminal, job_id, {"failed"})
        assert ended["message"] == "deeplearning-worker2 was lost: its agent is silent"
        assert [node["clean"] for node in ended["nodes"]] == [True] * 3
        ran = terminal.phalanx("run", "--launcher", "exec", "--", "echo", "here").stdout
        assert ran.count("here") == 2
        assert terminal.on("worker2", "cat /etc/ssh/ssh_host_ed25519_key.pub /etc/ssh/phalanx/id_ed25519.pub") == keys
        time.sleep(max(0.0, frozen_at + THRASHES_S - time.monotonic()))
    finally:
        for pid in agent:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    assert wait_for(terminal, "deeplearning-worker2", "ready") == before
    assert [during[name]["state"] for name in sorted(during)] == ["ready", "silent", "ready"]
    assert terminal.phalanx("run", "--launcher", "exec", "--", "echo", "here").stdout.count("here") == 3


def test_a_silent_worker_is_replaced_once_ec2_reports_its_end_and_its_certificate_refused(terminal):
    copy = f"umask 077; mkdir -p {KEPT}; cp /etc/ssh/phalanx/id_ed25519* {KEPT}/"
    terminal.on("worker3", copy)
    dead_login = (
        f"ssh -F none -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"
        f" -i {KEPT}/id_ed25519 -o CertificateFile={KEPT}/id_ed25519-cert.pub phalanx@deeplearning-worker2 echo in"
    )
    assert terminal.on("head", dead_login).strip() == "in"
    victim = kill(terminal, "deeplearning-worker3", silent=True, noticed_after_s=18)
    node = wait_for_replacement(terminal, "deeplearning-worker3", victim)
    hostname = f"ip-{node['address'].replace('.', '-')}"
    known = f"grep -q '^{node['address']} deeplearning-worker3 ' /etc/hosts"
    look = f"""for _ in $(seq 1200); do {known} && break; sleep 0.2; done
ssh -o BatchMode=yes deeplearning-worker3 hostname; cd /opt/phalanx; grep -c . hostfile"""
    for name in members(terminal):
        assert terminal.on(name, look).split() == [hostname, "3"], name
    assert "in" not in terminal.on("head", dead_login, check=False).split()
    terminal.on("head", f"rm -r {KEPT}")


def most_workers(terminal) -> int:
    """What the workers' group allows at most, to root on the head, too."""
    groups = api(terminal, "autoscaling").describe_auto_scaling_groups()["AutoScalingGroups"]
    return next(group["MaxSize"] for group in groups if group["AutoScalingGroupName"].endswith("-workers"))


def test_scale_up_with_a_head_whose_agent_was_killed_and_down_and_a_job_is_protected(terminal):
    head = members(terminal)["deeplearning-worker1"]["instance_id"]
    # Its children have its command line, until they run their own programs.
    killed = process(agent_of(terminal, head)[0])
    assert killed
    break_on_purpose(terminal, end={"instance_id": head, "command": AGENT_COMMAND})
    assert not wait_until_gone({killed})
    assert "has 4 of 4 nodes" in terminal.phalanx("scale", "4", "--yes").stdout
    assert most_workers(terminal) == 3
    assert sorted(members(terminal)) == [f"deeplearning-worker{n}" for n in (1, 2, 3, 4)]
    assert "scaled    4 nodes" in terminal.phalanx("status").stdout
    assert "`phalanx scale` requested 4 nodes" in terminal.phalanx("plan").stdout
    assert "4 of 4" in terminal.phalanx("up").stdout
    terminal.phalanx("run", "--detach", "--launcher", "exec", "--name", "long", "--", "sleep", "300")
    refused = terminal.phalanx("scale", "3", "--yes", check=False)
    assert refused.returncode == 6 and "would lose deeplearning-worker4" in refused.stderr
    terminal.phalanx("stop", "long")
    assert "has 3 of 3 nodes" in terminal.phalanx("scale", "3", "--yes").stdout
    assert most_workers(terminal) == 2
    assert sorted(members(terminal)) == [f"deeplearning-worker{n}" for n in (1, 2, 3)]


def test_a_shortage_is_reported_with_the_clouds_message(terminal):
    break_on_purpose(terminal, capacity={"c5.large": 3})
    done = terminal.phalanx("scale", "4", "--yes")
    assert "generation" not in done.stdout + done.stderr
    assert "has 3 of 4 nodes" in done.stdout
    assert "We currently do not have sufficient c5.large capacity" in done.stdout
    break_on_purpose(terminal, capacity={"c5.large": None})
    assert "has 3 of 3 nodes" in terminal.phalanx("scale", "3", "--yes").stdout


AGAIN = """import os, sys, time
record = os.path.join(os.environ["EFS_MOUNT"], sys.argv[1])
with open(record, "a") as file:
    print(os.environ["PHALANX_JOB"], file=file)
while sum(1 for _ in open(record)) < 2 or len(sys.argv) > 2:
    time.sleep(0.1)
"""


def wait_for_state(terminal, job: str, wanted: set[str]) -> dict:
    deadline = time.monotonic() + REPLACED_S
    while time.monotonic() < deadline:
        found = json.loads(terminal.on("head", f"cat /efs/.phalanx/jobs/{job}/state.json"))
        if found["state"] in wanted:
            return found
        time.sleep(1)
    raise AssertionError(found)


def start(terminal, name: str, *arguments: str) -> str:
    """Start a job with one process; return its id once it runs."""
    code = terminal.directory / "code"
    code.mkdir(exist_ok=True)
    (code / "again.py").write_text(AGAIN)
    options = ["--directory", str(code), "--launcher", "exec", "-n", "1", "--name", name, "--detach"]
    terminal.phalanx("run", *options, *arguments)
    terminal.on("head", f"for _ in $(seq 2400); do [ -s /efs/{name} ] && break; sleep 0.1; done; cat /efs/{name}")
    return terminal.on("head", f"cat /efs/{name}").strip()


def test_the_head_comes_back_as_head_at_the_same_address_and_settles_the_jobs(terminal):
    """No command queries the jobs: their states are read from the shared directory here.

    The boot of the first replacement fails, and it makes way for another.
    """
    before = json.loads(terminal.phalanx("status", "--json").stdout)
    again = start(terminal, "again", "--restarts", "1", "--", "python3", "again.py", "again")
    once = start(terminal, "once", "--", "python3", "again.py", "once", "for ever")
    terminal.on("head", "touch /efs/.fail-next-boot")
    victim = kill(terminal, "deeplearning-worker1", silent=False)
    wait_for_replacement(terminal, "deeplearning-worker1", victim)
    after = json.loads(terminal.phalanx("status", "--json").stdout)
    assert after["head_address"] == before["head_address"]
    # On a slow machine, a worker's first beat may be late.
    assert sorted(named(after["nodes"][1:]) + named(after["silent"])) == named(before["nodes"][1:])
    # At once: the workers learn of the new authority with their next beat, and jobs wait for that.
    ran = terminal.phalanx("run", "--launcher", "exec", "--", "hostname").stdout
    assert len({line.split()[-1] for line in ran.splitlines() if "ip-10-" in line}) == 3
    wait_for_state(terminal, again, {"succeeded"})
    assert terminal.on("head", "cat /efs/again").split() == [again, again]
    assert "head lost" in wait_for_state(terminal, once, {"lost"})["message"]
