"""An EMR cluster of real nodes: bootstrap actions, steps, logs in a bucket, ssh as hadoop, and its size."""

from __future__ import annotations

import gzip
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from emr_fakes import command, make_roles, request
from fleet_fakes import name
from local_clouds import api, endpoint

from conftest import Terminal, a_terminal
from phalanx.localcloud import dial

pytestmark = pytest.mark.cluster
BUCKET = "emr-logs"
LOGS = f"s3://{BUCKET}/logs"
# What AWS's and users' bootstrap actions do: they ask what the node is, administer by sudo, and print.
SCRIPT = """\
#!/bin/bash
set -e
echo "$# arguments: $*"
grep -o '"isMaster": [a-z]*' /mnt/var/lib/info/instance.json
sudo sh -c 'echo "$(id -un)" > /etc/made-by'
echo "as $(id -un) in $PWD" >&2
[ ! -e /etc/fails ]
"""


class Emr:
    """The service, a network with an internet gateway, and one cluster of two nodes."""

    def __init__(self, terminal: Terminal) -> None:
        self.terminal = terminal
        self.api, self.ec2, self.s3 = (api(terminal, service) for service in ("emr", "ec2", "s3"))
        make_roles(api(terminal, "iam"))
        self.s3.create_bucket(Bucket=BUCKET)
        self.subnet = self._public_subnet()
        self.key = terminal.directory / "key.pem"
        self.key.write_text(self.ec2.create_key_pair(KeyName="mine", KeyType="ed25519")["KeyMaterial"])
        self.key.chmod(0o600)

    def _public_subnet(self) -> str:
        vpc = self.ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
        found = self.ec2.create_subnet(VpcId=vpc, CidrBlock="10.0.1.0/24", AvailabilityZone="us-east-1a")
        subnet = found["Subnet"]["SubnetId"]
        gateway = self.ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
        self.ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc)
        main = self.ec2.describe_route_tables(Filters=[{"Name": "vpc-id", "Values": [vpc]}])["RouteTables"][0]
        self.ec2.create_route(RouteTableId=main["RouteTableId"], DestinationCidrBlock="0.0.0.0/0", GatewayId=gateway)
        self.ec2.modify_subnet_attribute(SubnetId=subnet, MapPublicIpOnLaunch={"Value": True})
        return subnet

    def run(self, script: str, cores: int = 1, **more: Any) -> str:
        """Make a cluster that runs this script as its bootstrap action, with two arguments."""
        key = name("boot")
        self.s3.put_object(Bucket=BUCKET, Key=key, Body=script.encode())
        action = {"Path": f"s3://{BUCKET}/{key}", "Args": ["fs-1", "us-east-1"]}
        given = {"BootstrapActions": [{"Name": "boot", "ScriptBootstrapAction": action}], "LogUri": LOGS, **more}
        given["Instances"] = {"Ec2KeyName": "mine"}
        return self.api.run_job_flow(**request(self.subnet, cores, **given))["JobFlowId"]

    def reaches(self, cluster: str, *states: str) -> dict[str, Any]:
        """Wait until the cluster is in one of these states; return it."""
        return wait_for(lambda: (found := self.describe(cluster))["Status"]["State"] in states and found, states)

    def describe(self, cluster: str) -> dict[str, Any]:
        return self.api.describe_cluster(ClusterId=cluster)["Cluster"]

    def instances(self, cluster: str, *states: str) -> list[dict[str, Any]]:
        chosen = {"InstanceStates": states} if states else {}
        return self.api.list_instances(ClusterId=cluster, **chosen)["Instances"]

    def log(self, path: str) -> str:
        """Return a log below LOGS, as EMR stores it."""
        return gzip.decompress(self.s3.get_object(Bucket=BUCKET, Key=f"logs/{path}.gz")["Body"].read()).decode()

    def step(self, cluster: str, *args: str) -> tuple[str, str]:
        """Run a command on the master; return how it ended, and what it printed."""
        steps = [command(*args, ActionOnFailure="CONTINUE")]
        (step,) = self.api.add_job_flow_steps(JobFlowId=cluster, Steps=steps)["StepIds"]
        ends = ("COMPLETED", "FAILED", "CANCELLED")
        state = wait_for(lambda: (found := self.state_of(cluster, step)) in ends and found, f"the end of {args}")
        return state, self.log(f"{cluster}/steps/{step}/stdout")

    def state_of(self, cluster: str, step: str) -> str:
        return self.api.describe_step(ClusterId=cluster, StepId=step)["Step"]["Status"]["State"]

    def ssh(self, user: str, host: str, line: str) -> str:
        """Run a line on a node, through ssh with the key pair."""
        there = endpoint(self.terminal)
        proxy = shlex.join([sys.executable, "-IS", str(dial.__file__), there["dial"], host, "22"])
        options = [f"ProxyCommand={proxy}", "ProxyUseFdpass=yes", "StrictHostKeyChecking=no", "IdentitiesOnly=yes"]
        options.append(f"UserKnownHostsFile={os.devnull}")
        chosen = [word for option in options for word in ("-o", option)]
        done = subprocess.run(
            ["ssh", "-q", "-F", os.devnull, "-i", str(self.key), *chosen, f"{user}@{host}", line],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def allow_ssh(self, cluster: str) -> None:
        """Open ssh to the master, as the console's button does."""
        group = self.describe(cluster)["Ec2InstanceAttributes"]["EmrManagedMasterSecurityGroup"]
        self.ec2.authorize_security_group_ingress(
            GroupId=group, IpProtocol="tcp", FromPort=22, ToPort=22, CidrIp="203.0.113.1/32"
        )


def wait_for(condition: Callable[[], Any], what: Any, timeout_s: float = 120.0) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"did not come about: {what}"
        time.sleep(0.1)
    return found


@pytest.fixture(scope="module")
def emr() -> Iterator[Emr]:
    with a_terminal("") as terminal:
        state = terminal.state / "local"
        state.mkdir(parents=True, mode=0o700)
        serve = [sys.executable, "-m", "phalanx.localcloud", "serve", "--state", str(state)]
        subprocess.run(serve, check=True, timeout=120)
        yield Emr(terminal)


@pytest.fixture(scope="module")
def cluster(emr: Emr) -> str:
    made = emr.run(SCRIPT)
    emr.reaches(made, "WAITING", "TERMINATED_WITH_ERRORS")
    assert emr.describe(made)["Status"]["State"] == "WAITING", emr.describe(made)["Status"]
    return made


def test_bootstrap_actions_run_as_hadoop_with_sudo_and_arguments_on_every_node(emr, cluster):
    master, core = emr.instances(cluster, "RUNNING")
    for instance, is_master in ((master, "true"), (core, "false")):
        logs = f"{cluster}/node/{instance['Ec2InstanceId']}/bootstrap-actions/1"
        assert emr.log(f"{logs}/stdout") == f'2 arguments: fs-1 us-east-1\n"isMaster": {is_master}\n'
        assert emr.log(f"{logs}/stderr") == "as hadoop in /mnt/var/lib/bootstrap-actions/1\n"
        assert "ended with exit code 0" in emr.log(f"{logs}/controller")
    assert emr.step(cluster, "cat", "/etc/made-by") == ("COMPLETED", "root\n")


def test_steps_run_on_the_master_and_their_logs_are_in_the_bucket(emr, cluster):
    master = emr.instances(cluster)[0]
    host = master["PrivateDnsName"].partition(".")[0]
    assert emr.step(cluster, "sh", "-c", "uname -n; id -un; exit 3") == ("FAILED", f"{host}\nhadoop\n")
    assert emr.step(cluster, "no-such-command")[0] == "FAILED"
    assert emr.describe(cluster)["Status"]["State"] == "WAITING"


def test_a_person_logs_in_to_the_master_as_hadoop_or_ec2_user_with_the_key_pair(emr, cluster):
    emr.allow_ssh(cluster)
    host = emr.instances(cluster)[0]["PublicIpAddress"]
    assert emr.ssh("hadoop", host, "sudo id -un; echo ~") == "root\n/home/hadoop\n"
    assert emr.ssh("ec2-user", host, "id -un") == "ec2-user\n"
    about = json.loads(emr.ssh("hadoop", host, "cat /mnt/var/lib/info/job-flow.json"))
    assert (about["jobFlowId"], about["instanceCount"]) == (cluster, 2)


def test_a_node_that_is_added_later_runs_the_same_actions_and_one_that_is_removed_is_gone(emr, cluster):
    group = next(g for g in emr.api.list_instance_groups(ClusterId=cluster)["InstanceGroups"] if g["Name"] == "Core")
    known = {instance["Ec2InstanceId"] for instance in emr.instances(cluster)}
    resize(emr, group, 2)
    new = wait_for(lambda: [i for i in emr.instances(cluster, "RUNNING") if i["Ec2InstanceId"] not in known], "a node")
    assert "2 arguments" in emr.log(f"{cluster}/node/{new[0]['Ec2InstanceId']}/bootstrap-actions/1/stdout")
    resize(emr, group, 1)
    gone = new[0]["Ec2InstanceId"]
    wait_for(lambda: not (emr.terminal.state / "local/nodes" / gone).exists(), f"the end of {gone}")


def resize(emr: Emr, group: dict[str, Any], count: int) -> None:
    change = {"InstanceGroupId": group["Id"], "InstanceCount": count}
    emr.api.modify_instance_groups(InstanceGroups=[change])


def test_a_bootstrap_action_that_fails_ends_its_cluster_and_its_output_is_in_the_bucket(emr):
    made = emr.run("#!/bin/sh\necho why it failed >&2\nexit 7\n", cores=0)
    status = emr.reaches(made, "TERMINATED_WITH_ERRORS")["Status"]
    instance = emr.instances(made)[0]["Ec2InstanceId"]
    assert status["StateChangeReason"] == {
        "Code": "BOOTSTRAP_FAILURE",
        "Message": f"On the master instance ({instance}), bootstrap action 1 returned a non-zero return code",
    }
    assert emr.log(f"{made}/node/{instance}/bootstrap-actions/1/stderr") == "why it failed\n"
    assert not (emr.terminal.state / "local/nodes" / instance).exists()


def test_a_cluster_is_terminated_while_a_step_runs_whose_logs_are_stored(emr):
    echo = {"Name": "echo", "ScriptBootstrapAction": {"Path": "file:/bin/echo", "Args": ["hello"]}}
    made = emr.run(SCRIPT, 0, BootstrapActions=[echo], Steps=[command("sh", "-c", "echo begun; sleep 1000")])
    (step,) = emr.api.list_steps(ClusterId=made)["Steps"]
    wait_for(lambda: emr.state_of(made, step["Id"]) == "RUNNING", "the step")
    emr.api.terminate_job_flows(JobFlowIds=[made])
    emr.reaches(made, "TERMINATED")
    assert "stopped" in emr.log(f"{made}/steps/{step['Id']}/controller")
    instance = emr.instances(made)[0]["Ec2InstanceId"]
    assert emr.log(f"{made}/node/{instance}/bootstrap-actions/1/stdout") == "hello\n"
    assert not (emr.terminal.state / "local/nodes" / instance).exists()


def test_phalanx_makes_one_runs_jobs_on_it_resizes_it_and_says_when_emr_has_ended_it(emr):
    terminal = emr.terminal
    spec = "name: ours\ncloud: local-emr\nnodes: 2\nmin: 2\ntype: m5.xlarge\nslots: 1\nemr: {logs: s3://new-bucket}\n"
    (terminal.directory / "phalanx.yaml").write_text(spec)
    terminal.phalanx("up")
    nodes = json.loads(terminal.phalanx("nodes", "--json").stdout)
    addresses = [node["address"] for node in nodes]
    job = terminal.phalanx(
        "run", "-n", "2", "--", "sh", "-c", "cat /home/hadoop/worker_ip_file; sudo -n true || id -un"
    )
    assert [line for line in job.stdout.splitlines() if line.endswith("phalanx")], job.stdout
    assert all(address in job.stdout for address in addresses)
    terminal.phalanx("scale", "3")
    assert (
        terminal.on("worker1", "for ip in $(cat /home/hadoop/worker_ip_file); do ssh $ip hostname; done").count("ip-")
        == 3
    )
    (master,) = (node["instance_id"] for node in nodes if node["name"].endswith("worker1"))
    emr.ec2.terminate_instances(InstanceIds=[master])
    ended = "The master node was terminated"
    wait_for(lambda: ended in terminal.phalanx("status", "--json", check=False).stdout, ended)
    assert "the master node died" in terminal.phalanx("why", check=False).stdout
    assert ended in terminal.phalanx("up", check=False).stderr
    assert "nothing of it is left" in terminal.phalanx("down", "--yes", "--keep", "no").stdout
