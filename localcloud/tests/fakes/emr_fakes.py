"""EMR clusters in a local cloud without nodes: tests play the controllers of the instances."""

from __future__ import annotations

import io
import json
import re
from typing import Any

from fleet_fakes import until
from stack_fakes import Stacks

LABEL = "emr-7.10.0"
ACTION = {"Name": "first", "ScriptBootstrapAction": {"Path": "s3://bucket/first.sh", "Args": ["a", "b c"]}}


def trust(service: str) -> str:
    """Return a trust policy for a service."""
    allow = {"Effect": "Allow", "Principal": {"Service": service}, "Action": "sts:AssumeRole"}
    return json.dumps({"Version": "2012-10-17", "Statement": [allow]})


def make_roles(iam: Any, launches: bool = True) -> None:
    """Make EMR's default roles and instance profile; the service role may launch instances, or nothing."""
    for name, service in (("EMR_DefaultRole", "elasticmapreduce"), ("EMR_EC2_DefaultRole", "ec2")):
        iam.create_role(RoleName=name, AssumeRolePolicyDocument=trust(f"{service}.amazonaws.com"))
    if launches:
        allow(iam, "EMR_DefaultRole", "ec2:*", "iam:PassRole")
    allow(iam, "EMR_EC2_DefaultRole", "s3:*")
    iam.create_instance_profile(InstanceProfileName="EMR_EC2_DefaultRole")
    iam.add_role_to_instance_profile(InstanceProfileName="EMR_EC2_DefaultRole", RoleName="EMR_EC2_DefaultRole")


def allow(iam: Any, role: str, *actions: str) -> None:
    """Let a role do actions on everything."""
    document = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": actions, "Resource": "*"}]}
    iam.put_role_policy(RoleName=role, PolicyName="allow", PolicyDocument=json.dumps(document))


def request(subnet: str, cores: int = 2, **more: Any) -> dict[str, Any]:
    """Return a request for a cluster of a master and cores, which waits for steps."""
    groups = [{"InstanceRole": "MASTER", "InstanceType": "m5.xlarge", "InstanceCount": 1}]
    if cores:
        groups.append({"InstanceRole": "CORE", "InstanceType": "m5.xlarge", "InstanceCount": cores})
    instances = {"Ec2SubnetId": subnet, "KeepJobFlowAliveWhenNoSteps": True, "InstanceGroups": groups}
    return {
        "Name": "test",
        "ReleaseLabel": LABEL,
        "ServiceRole": "EMR_DefaultRole",
        "JobFlowRole": "EMR_EC2_DefaultRole",
        **more,
        "Instances": {**instances, **more.get("Instances", {})},
    }


def command(*args: str, **more: Any) -> dict[str, Any]:
    """Return a step that runs a command."""
    return {"Name": "step", "HadoopJarStep": {"Jar": "command-runner.jar", "Args": list(args)}, **more}


class Emr:
    """The service, with what tests ask of it."""

    def __init__(self, cloud: Stacks) -> None:
        self.cloud, self.api = cloud, cloud.client("emr")
        make_roles(cloud.client("iam"))
        ec2 = cloud.client("ec2")
        self.vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
        made = ec2.create_subnet(VpcId=self.vpc, CidrBlock="10.0.1.0/24", AvailabilityZone="us-east-1a")
        self.subnet = made["Subnet"]["SubnetId"]

    def run(self, cores: int = 2, **more: Any) -> str:
        """Make a cluster, and wait until its instances are launched or it has ended."""
        cluster = self.api.run_job_flow(**request(self.subnet, cores, **more))["JobFlowId"]
        until(lambda: self.state(cluster) != "STARTING" or len(self.instances(cluster)) == cores + 1)
        return cluster

    def ready(self, cores: int = 2, **more: Any) -> str:
        """Make a cluster whose instances have all run their bootstrap actions."""
        cluster = self.run(cores, **more)
        self.bootstrap(cluster)
        return cluster

    def bootstrap(self, cluster: str) -> None:
        """Let all new instances run their bootstrap actions."""
        for instance in self.instances(cluster):
            if instance["Status"]["State"] == "PROVISIONING":
                self.report(instance, "start")
                self.report(instance, "ready")

    def describe(self, cluster: str) -> dict[str, Any]:
        return self.api.describe_cluster(ClusterId=cluster)["Cluster"]

    def state(self, cluster: str) -> str:
        return self.describe(cluster)["Status"]["State"]

    def ended(self, cluster: str) -> tuple[str, str, str]:
        """Wait for the cluster's end; return its state, code and message."""
        until(lambda: self.state(cluster).startswith("TERMINATED"), f"the end of {cluster}")
        status = self.describe(cluster)["Status"]
        reason = status["StateChangeReason"]
        return status["State"], reason["Code"], reason["Message"]

    def instances(self, cluster: str, *roles: str) -> list[dict[str, Any]]:
        """Return the instances that have not ended."""
        states = ["AWAITING_FULFILLMENT", "PROVISIONING", "BOOTSTRAPPING", "RUNNING"]
        chosen = {"InstanceGroupTypes": list(roles)} if roles else {}
        return self.api.list_instances(ClusterId=cluster, InstanceStates=states, **chosen)["Instances"]

    def group(self, cluster: str, role: str = "CORE") -> dict[str, Any]:
        groups = self.api.list_instance_groups(ClusterId=cluster)["InstanceGroups"]
        return next(group for group in groups if group["InstanceGroupType"] == role)

    def resize(self, cluster: str, count: int, **more: Any) -> None:
        change = {"InstanceGroupId": self.group(cluster)["Id"], "InstanceCount": count, **more}
        self.api.modify_instance_groups(ClusterId=cluster, InstanceGroups=[change])

    def step(self, cluster: str, step: str) -> dict[str, Any]:
        return self.api.describe_step(ClusterId=cluster, StepId=step)["Step"]

    def report(self, instance: dict[str, Any], verb: str, **report: Any) -> dict[str, Any]:
        """Report something as the instance's controller."""
        data = until(lambda: self.cloud.runner.booted.get(instance["Ec2InstanceId"])).user_data.decode()
        path = re.search(r"url=\S+?(/_emr/\S+)", data)[1]  # type: ignore[index]
        body = json.dumps(report).encode()
        environ = {"REQUEST_METHOD": "POST", "PATH_INFO": f"{path}/{verb}", "CONTENT_LENGTH": str(len(body))}
        shown: list[str] = []
        answer = self.cloud.app(
            {**environ, "wsgi.input": io.BytesIO(body)}, lambda status, _headers: shown.append(status)
        )
        assert shown == ["200 OK"]
        return json.loads(b"".join(answer))

    def die(self, instance: dict[str, Any]) -> None:
        """End an instance behind EMR's back."""
        self.cloud.client("ec2").terminate_instances(InstanceIds=[instance["Ec2InstanceId"]])
