"""An EMR service with real nodes in a local cloud of its own, and what tests do with its clusters."""

from __future__ import annotations

import gzip
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from aws_cli import AwsCli
from emr_fakes import LABEL, command, make_roles, request
from fleet_fakes import name
from local_clouds import api, endpoint
from terminals import Terminal, a_terminal

from localcloud.api.moto_setup import AMAZON_LINUX

BUCKET = "emr-logs"
LOGS = f"s3://{BUCKET}/logs"


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

    def ssh(self, user: str, host: str, line: str, given: str = "", agent: bool = False) -> str:
        """Run a line on a node, through ssh with the key pair; with `agent`, the node can use the key, too."""
        there = endpoint(self.terminal)
        proxy = shlex.join([*there["dial"], host, "22"])
        options = [f"ProxyCommand={proxy}", "ProxyUseFdpass=yes", "StrictHostKeyChecking=no", "IdentitiesOnly=yes"]
        options.append(f"UserKnownHostsFile={os.devnull}")
        chosen = [word for option in options for word in ("-o", option)]
        forwarded = ["ssh-agent", "sh", "-c", f'ssh-add -q {shlex.quote(str(self.key))} && exec "$@"', "sh"]
        argv = ["ssh", "-q", "-A" if agent else "-a", "-F", os.devnull, "-i", str(self.key), *chosen, f"{user}@{host}"]
        argv = [*(forwarded if agent else []), *argv, line]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=300, input=given)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def allow_ssh(self, cluster: str) -> None:
        """Open ssh to the master, as the console's button does."""
        group = self.describe(cluster)["Ec2InstanceAttributes"]["EmrManagedMasterSecurityGroup"]
        self.ec2.authorize_security_group_ingress(
            GroupId=group, IpProtocol="tcp", FromPort=22, ToPort=22, CidrIp="203.0.113.1/32"
        )


def create(aws: AwsCli, count: int, *more: str, name: str = "theirs", **attributes: str) -> str:
    """Make a cluster by the command of AWS's guide to deep learning on EMR of 2018, with a present label and type."""
    named = {"InstanceProfile": "EMR_EC2_DefaultRole", "KeyName": "mine", **attributes}
    given = {
        "--release-label": LABEL,
        "--instance-type": "m5.xlarge",
        "--instance-count": str(count),
        "--ec2-attributes": ",".join(f"{key}={value}" for key, value in named.items()),
        "--service-role": "EMR_DefaultRole",
        "--custom-ami-id": AMAZON_LINUX["x86_64"],
        "--log-uri": LOGS,
        "--name": name,
        "--region": "us-east-1",
    }
    return aws("emr", "create-cluster", *(word for pair in given.items() for word in pair), *more)["ClusterId"]


def wait_for(condition: Callable[[], Any], what: Any, timeout_s: float = 300.0) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"did not come about: {what}"
        time.sleep(0.1)
    return found


@contextmanager
def served(spec: str = "") -> Iterator[Emr]:
    """Yield the service of a local cloud that runs nothing else."""
    with a_terminal(spec) as terminal:
        state = terminal.state / "local"
        state.mkdir(parents=True, mode=0o700)
        serve = [sys.executable, "-m", "localcloud", "serve", "--state", str(state)]
        subprocess.run(serve, check=True, timeout=300)
        yield Emr(terminal)
