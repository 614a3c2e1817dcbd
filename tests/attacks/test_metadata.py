"""A job must not get the role of its node's instance, nor that role's permissions, such as writing the roster."""

from __future__ import annotations

import errno
import json
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from local_clouds import api
from terminals import Terminal, a_cluster, read_until

pytestmark = pytest.mark.cluster

HERE = Path(__file__).parent
SPEC = "name: guests\ncloud: local\nnodes: 2\nmin: 2\ntype: c5.large\nshared: /efs\nkeep: no\n"
HEAD, WORKER = "deeplearning-master", "deeplearning-worker2"
# The errno of a connection to the metadata service by the device, which needs more than a rule; 0 when there is one.
CONNECT = (
    "import socket; s = socket.socket(); s.settimeout(5); s.setsockopt(1, socket.SO_BINDTODEVICE, b'eth0');"
    " print(s.connect_ex(('169.254.169.254', 80)))"
)
CLIENT = (
    "import sys, http.client; c = http.client.HTTPConnection('127.0.0.1', 331, timeout=10);"
    " c.request('GET', '/', headers={'Authorization': sys.argv[1]}); print(c.getresponse().status)"
)
# The agent looks each 5 s whether the way is shut; a machine that reboots lets people in after 2 s here.
SHUT_S, BACK_S = 240.0, 300.0
AGENT = "pgrep -of '^[^ ]*python.*(/opt/phalanx|part-001)'"
LOOK = "ps -eo pid,ppid,lstart,args; ls -l /run/phalanx.sock; tail -n 20 /opt/phalanx/agent.log"
UNIT = "/etc/systemd/system/phalanx.service"
WANTED = "/etc/systemd/system/multi-user.target.wants/phalanx.service"
# As process 1 starts it, with its environment.
START = f"export $(tr '\\0' ' ' < /proc/1/environ); (exec /sbin/service {UNIT}) > /dev/null 2>&1 & echo started"
SECRETS = (
    *("/opt/phalanx/config.json", "/opt/phalanx/authority/key", "/etc/ssh/ssh_host_ed25519_key"),
    *("/var/lib/cloud/instance/user-data.txt", "/var/lib/cloud/instance/scripts/part-001"),
    *("/proc/$agent/environ", "/proc/$agent/mem", "/proc/$agent/fd"),
)
GUEST = """
import sys, boto3
print(boto3.client("sts").get_caller_identity()["Arn"])
try:
    boto3.client("sqs").send_message(QueueUrl=sys.argv[1], MessageBody="hello")
    print("sent")
except Exception as error:
    print(type(error).__name__, error)
"""
NODES = {"head": WORKER, "worker2": HEAD}


@pytest.fixture(scope="module")
def lab() -> Iterator[Terminal]:
    with a_cluster(SPEC) as terminal:
        yield terminal


def script(terminal: Terminal, name: str) -> str:
    """Copy a file of this directory to where all nodes see it."""
    text = (HERE / name).read_text()
    terminal.on("head", f"cat > /efs/{name} <<'END'\n{text}END")
    return f"/efs/{name}"


def outputs(terminal: Terminal) -> dict[str, str]:
    (stack,) = api(terminal, "cloudformation").describe_stacks(StackName="guests")["Stacks"]
    return {output["OutputKey"]: output["OutputValue"] for output in stack["Outputs"]}


# Root opens on the node what AWS has and the local cloud has not: user namespaces and subordinate ids for jobs, and the
# metadata service's other address, where whoever asks gets a token.
AS_ON_AWS = """
sysctl -qw user.max_user_namespaces=100 && echo phalanx:50000:1000 | tee /etc/subuid > /etc/subgid
mkdir -p /opt/setuid; cp /usr/bin/newuidmap /usr/bin/newgidmap /opt/setuid; chmod 4755 /opt/setuid/*
setsid unshare -n sleep infinity < /dev/null > /dev/null 2>&1 & there=$!
until [ "$(readlink /proc/$there/ns/net)" != "$(readlink /proc/$$/ns/net)" ]; do sleep 0.1; done
ip link add six type veth peer name door netns $there
ip addr add fd00:ec2::1/64 dev six nodad; ip link set six up
inside="nsenter -n -t $there"
$inside ip addr add fd00:ec2::254/64 dev door nodad; $inside ip link set door up
setsid $inside python3 -c '
import socket
door = socket.create_server(("fd00:ec2::254", 80), family=socket.AF_INET6)
while True:
    with door.accept()[0] as connection:
        connection.recv(9999)
        connection.sendall(b"HTTP/1.0 200 OK\\r\\n\\r\\n" + b"x" * 56)
' < /dev/null > /dev/null 2>&1 &
echo $there $! > /run/six
"""
AS_BEFORE = (
    "sysctl -qw user.max_user_namespaces=0; rm -r /etc/sub?id /opt/setuid; ip link del six; kill $(cat /run/six)"
)
ABOVE = "PATH=/opt/setuid:$PATH unshare --map-auto --map-root-user -S 1"


@pytest.fixture
def as_on_aws(lab: Terminal, node: str) -> Iterator[Terminal]:
    lab.phalanx("exec", "--sudo", "--node", node, "--", AS_ON_AWS)
    yield lab
    lab.phalanx("exec", "--sudo", "--node", node, "--", AS_BEFORE)


@pytest.mark.parametrize("node", NODES)
def test_no_way_leads_a_job_to_the_credentials_of_its_instance(as_on_aws, node):
    lab = as_on_aws
    reach = script(lab, "reach_metadata.py")
    own = lab.on(node, "hostname -I").split()[0]
    gateway = lab.on(node, "ip route show default").split()[2]
    found = json.loads(lab.on(node, f"python3 {reach} {own} {gateway} {NODES[node]}"))
    assert len(found) > 30
    for address in ("169.254.169.254", "fd00:ec2::254"):
        # The same request is answered for root.
        ask = f"until python3 {reach} ask {address} | grep ' 200 OK'; do sleep 0.5; done"
        lab.phalanx("exec", "--sudo", "--node", node, "--", f"timeout 240 sh -c {shlex.quote(ask)}")
    ids = lab.on(node, f"unshare -Ur id -u; {ABOVE} cat /proc/self/uid_map").split()
    assert ids[0] == "0" and "50000" in ids, "jobs have user namespaces and subordinate ids here"
    assert ", ".join(way for way, brought in found.items() if brought) == ""


def test_a_job_on_the_head_can_not_make_itself_the_authority(lab):
    forge = script(lab, "forge_roster.py")
    shown = lab.on("head", f"cd $(mktemp -d) && python3 {forge} {outputs(lab)['RosterTable']} {WORKER}")
    assert "the table: forged" not in shown
    assert "the worker: root\n" not in shown
    assert "the table: " in shown and "the worker: " in shown


def test_a_job_reads_nothing_of_the_agent_s(lab):
    looks = "; ".join(f"ls {path}/ >&2 || head -c 1 {path}" for path in SECRETS)
    shown = lab.on("head", f"agent=$({AGENT}); [ $agent ] && echo found; {looks}", check=False)
    assert shown == "found\n"


def role(terminal: Terminal) -> dict[str, str]:
    return {"RoleName": outputs(terminal)["JobRole"], "PolicyName": "granted"}


def as_guest(terminal: Terminal, code: Path, *options: str) -> list[str]:
    """Run a job on both nodes that reports its identity and whether it can send to a queue."""
    (code / "guest.py").write_text(GUEST)
    url = api(terminal, "sqs").create_queue(QueueName="guests")["QueueUrl"]
    arguments = ("--directory", str(code), "--launcher", "exec", *options, "--", "python3", "guest.py", url)
    return sorted(terminal.phalanx("run", *arguments).stdout.splitlines())


def test_a_job_has_a_role_of_its_own_that_may_do_what_it_was_granted(lab, tmp_path):
    name = outputs(lab)["JobRole"]
    whole = as_guest(lab, tmp_path)
    assert sum(line.split()[1].startswith("arn:") and f"assumed-role/{name}/" in line for line in whole) == 2
    assert sum("AccessDenied" in line for line in whole) == 2
    send = {"Effect": "Allow", "Action": "sqs:SendMessage", "Resource": "*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [send]})
    api(lab, "iam").put_role_policy(**role(lab), PolicyDocument=policy)
    assert sum(line.endswith(" sent") for line in as_guest(lab, tmp_path)) == 2
    api(lab, "iam").delete_role_policy(**role(lab))


def test_the_user_s_own_credentials_come_first(lab, tmp_path):
    own = ("--env", "AWS_ACCESS_KEY_ID=AKIAOWN", "--env", "AWS_SECRET_ACCESS_KEY=own")
    arguments = ("python3", "-c", "import boto3; print(boto3.Session().get_credentials().access_key)")
    done = lab.phalanx("run", "--directory", str(tmp_path), "--launcher", "exec", *own, "--", *arguments)
    assert done.stdout.count("AKIAOWN") == 2


def asked(terminal: Terminal, node: str, token: str) -> str:
    """Return the status with which the node's agent answers a request with this token; "" without an agent."""
    return terminal.on(node, f'python3 -c "{CLIENT}" "{token}"', check=False).strip()


def wait_until_answered(terminal: Terminal, node: str, token: str, status: str) -> None:
    end = time.monotonic() + BACK_S
    while (shown := asked(terminal, node, token)) != status:
        if time.monotonic() > end:
            state = terminal.phalanx("exec", "--sudo", "--node", node, "--", LOOK, check=False).stdout
            jobs = terminal.phalanx("jobs", check=False).stdout
            pytest.fail(f"{node}'s agent answers {shown!r} and not {status}\n{jobs}\n{state}")
        time.sleep(0.5)


def reboot(terminal: Terminal, look: str = "true") -> str:
    """Reboot worker2, and return what a look at it prints as soon as it lets anybody in."""
    began = "cut -d ' ' -f 22 /proc/1/stat"
    before = terminal.on("worker2", began)
    worker = json.loads(terminal.phalanx("status", "--json").stdout)["nodes"][1]["instance_id"]
    api(terminal, "ec2").reboot_instances(InstanceIds=[worker])
    end = time.monotonic() + BACK_S
    while not (shown := terminal.on("worker2", f"{began}; {look}", check=False)) or shown.startswith(before):
        assert time.monotonic() < end, "worker2 does not let anybody in after its reboot"
    return shown.partition("\n")[2]


@contextmanager
def a_job(terminal: Terminal) -> Iterator[list[str]]:
    """Run a job on head and worker2; yield its processes' tokens."""
    print_it = "echo token=$AWS_CONTAINER_AUTHORIZATION_TOKEN; exec sleep 4711"
    before = jobs_that_run(terminal)
    with terminal.start("run", "--launcher", "exec", "--", "sh", "-c", print_it) as job:
        assert job.stdout
        shown = (line.strip() for line in job.stdout if " token=" in line)
        try:
            yield [line.partition("=")[2] for line in sorted([next(shown), next(shown)])]
            # Jobs of other tests may have begun meanwhile: the newest need not be this one.
            (this,) = jobs_that_run(terminal) - before
            terminal.phalanx("stop", this)
            job.wait(timeout=300)
        finally:
            job.kill()


def jobs_that_run(terminal: Terminal) -> set[str]:
    """Return the ids of the jobs that run."""
    jobs = json.loads(terminal.phalanx("jobs", "--json").stdout)
    return {one["id"] for one in jobs if one["state"] == "running"}


def test_a_token_is_good_while_its_job_runs_and_no_other_is(lab):
    with a_job(lab) as (token, _):
        assert asked(lab, "head", token) == "200"
        assert asked(lab, "head", token[:-1]) == asked(lab, "head", "") == asked(lab, "head", "x" * 64) == "401"
    wait_until_answered(lab, "head", token, "401")


@pytest.mark.parametrize("after", ["its first boot", "a reboot"])
def test_an_agent_that_comes_back_knows_the_jobs_that_ran_or_started_without_it(lab, after):
    """The agent was killed and its socket is gone, as after a boot. The node restarts it, as systemd would."""
    if after == "a reboot":
        reboot(lab)
        wait_until_answered(lab, "worker2", "", "401")
    # The socket first: the next agent makes its own.
    gone = f"rm /run/phalanx.sock; kill -9 $({AGENT})"
    with a_job(lab) as (_, running):
        assert asked(lab, "worker2", running) == "200"
        lab.phalanx("exec", "--sudo", "--node", "worker2", "--", gone)
        with a_job(lab) as (_, started):
            assert running != started != ""
            for token in (running, started):
                wait_until_answered(lab, "worker2", token, "200")


@contextmanager
def crowding(terminal: Terminal, how: str) -> Iterator[None]:
    """Crowd worker2's agent, as a job could."""
    crowd, while_exists = script(terminal, "crowd_agent.py"), "/efs/crowding"
    terminal.on("head", f"touch {while_exists}")
    with terminal.start("ssh", "worker2", "--", f"python3 {crowd} {while_exists} {how}") as crowded:
        read_until(crowded, "holding")
        try:
            yield
        finally:
            terminal.on("head", f"rm {while_exists}")
            crowded.wait(timeout=60)


def test_requests_that_do_not_end_keep_no_job_from_its_credentials(lab):
    with a_job(lab) as (_, token), crowding(lab, "halves"):
        wait_until_answered(lab, "worker2", token, "200")


def test_jobs_that_do_not_exist_keep_no_job_from_its_credentials(lab):
    with crowding(lab, "strangers"), a_job(lab) as (_, token):
        wait_until_answered(lab, "worker2", token, "200")


def test_rules_that_somebody_removes_come_back(lab):
    """systemd-networkd removes rules when it restarts, and a person may by mistake."""
    removed = "ip rule del pref 1; ip rule del pref 2; ip -6 rule del pref 1; ip route flush table 7312"
    lab.phalanx("exec", "--sudo", "--node", "worker2", "--", removed)
    end = time.monotonic() + SHUT_S
    while lab.on("worker2", f'python3 -c "{CONNECT}"') == "0\n":
        assert time.monotonic() < end
        time.sleep(1)


def test_a_node_that_reboots_lets_nobody_in_before_the_way_is_shut(lab):
    """Even without its agent: the first shell that gets in tries at once."""
    lab.phalanx("exec", "--sudo", "--node", "worker2", "--", f"rm {WANTED}")
    assert reboot(lab, f'python3 -c "{CONNECT}"') == f"{errno.ENETUNREACH}\n"
    lab.phalanx("exec", "--sudo", "--node", "worker2", "--", f"ln -s {UNIT} {WANTED}; {START}")
    wait_until_answered(lab, "worker2", "", "401")
