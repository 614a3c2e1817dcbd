"""IAM exactly enough: in a cluster's life, by a person who has what `phalanx policy` prints, every right is used.

The local cloud records what the policies of a role allowed. A right is needed if a call is refused without it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from aws_here import AwsHere
from clusters import aws_spec
from fleet_fakes import until
from local_clouds import api, break_on_purpose, wait_for_roster, wait_until_stopped
from needed_rights import not_needed, used
from own_vpc import OwnFileSystem, OwnVpc
from terminals import Terminal, a_terminal, read_until

from localcloud.iam.policy import Ask, Statement, statements_of
from phalanx.aws import doctor, lookups
from phalanx.jobs.own_code import write_package
from phalanx.node.roster import Roster

pytestmark = pytest.mark.cluster

IDLE_S = 40
WAIT_S = 600.0
# The boot script fails once where the test wants it: a head that can't serve ends itself.
SPEC = f"""name: rights
cloud: local
nodes: 2
min: 2
type: c5.large
keep: no
lease: 8h
idle: {IDLE_S}s
mail: me@example.com
node_timeout: 60s
data:
  runs: s3://rights/runs rw
boot: |
  if rm /efs/.fail-next-boot; then exit 1; fi
"""
JOB = """
import re, sys
sys.path.insert(0, ".")
from phalanx.objects.job_keys import OfJob
from phalanx.objects.s3_client import Bucket, Client, endpoint_here

client = Client(Bucket("rights", "us-east-1", endpoint_here("")), OfJob())
client.call("PUT", "runs/a", {}, {}, b"42")
client.call("GET", "runs/a", {})
client.call("DELETE", "runs/a", {})
client.call("GET", "", {"list-type": "2", "prefix": "runs/"})
begun = client.call("POST", "runs/b", {"uploads": ""})
upload = {"uploadId": re.search(rb"<UploadId>(.*?)</UploadId>", begun.body)[1].decode()}
client.call("GET", "runs/b", upload)
client.call("DELETE", "runs/b", upload)
"""
PERSON = "person"
# What this life does not need, and why it is a right nevertheless.
NOT_HERE = {
    "network-interface/*": "EC2's reference names instances and interfaces for AssociateAddress; not tried on AWS",
    "ec2:AssociateAddress": "the same: there is a statement for each",
    "ec2:DescribeSpotPriceHistory": "prices are AWS's; without it, they come from a table",
    "pricing:GetProducts": "the same",
    "ec2:DescribeVpcBlockPublicAccessExclusions": "asked where the account blocks public access",
    "ec2:GetEbsEncryptionByDefault": "asked where the account has a key of its own for disks",
    "user/${aws:username}": "the person here has a role, of which the policy does not know the name",
    "iam:SimulatePrincipalPolicy": "the same",
    "cloudformation:TagResource": "AWS judges a stack's tags beside CreateStack",
    "lambda:ListTags": "asked about functions that a deletion left",
    "iam:ListRoleTags": "the same of roles",
    "events:ListTagsForResource": "the same of rules",
    "rule/": "the rule that looks for forgotten clusters: test_forgotten_cluster.py",
    "role/phalanx/": "the role that removes a forgotten cluster: test_forgotten_cluster.py",
    "sns:SetSubscriptionAttributes": "an update by a later version",
    "ec2:ReplaceRoute": "the same: neither has tags, so that a change of tags leaves it alone",
    "elasticfilesystem:ModifyMountTargetSecurityGroups": "the same of mount targets",
}
START = "from phalanx.local import endpoint; endpoint.begin(); endpoint.wait()"
TRUST = {"Effect": "Allow", "Principal": {"AWS": "arn:aws:iam::123456789012:root"}, "Action": "sts:AssumeRole"}


class Life:
    """A cluster's life, its roles' policies, and what was recorded of them."""

    def __init__(self, terminal: Terminal, tmp_path: Path) -> None:
        self.terminal, self._tmp = terminal, tmp_path
        self.policies: dict[str, list[Statement]] = {}

    def live(self) -> None:
        self._become_a_person()
        phalanx = self.terminal.phalanx
        self._look_up()
        phalanx("plan", "--on-aws")
        phalanx("up")
        self._wait_for_boot_logs()
        with self._busy("sleep 4711"):
            for command in (["status"], ["nodes"], ["why"], ["extend", "6h"], ["allow", "192.0.2.0/24"], ["reap"]):
                phalanx(*command)
            self._use_data()
            phalanx("scale", "3")
            self._lose_a_worker()
            self._lose_the_head()
        with self._busy("echo begun; until [ -e /efs/.changed ]; do sleep 0.2; done") as busy:
            read_until(busy, "begun")
            self._change()
            self.terminal.on("head", "touch /efs/.changed")
            busy.wait(timeout=WAIT_S)
        wait_until_stopped(self.terminal, WAIT_S)
        assert json.loads(phalanx("status", "--json").stdout)["stopped"]
        self._keep_policies()
        phalanx("up")
        self._add_by_hand()
        phalanx("down", "--yes")

    def _wait_for_boot_logs(self) -> None:
        """Wait for the nodes' boot logs, which reach CloudWatch Logs within seconds and which `why` reads."""
        logs = api(self.terminal, "logs")
        groups = [one["logGroupName"] for one in logs.describe_log_groups()["logGroups"]]
        until(lambda: any(logs.describe_log_streams(logGroupName=one)["logStreams"] for one in groups), "a boot log")

    @contextlib.contextmanager
    def _busy(self, command: str) -> Iterator[subprocess.Popen[str]]:
        """Keep the head in use; end that when the block fails, too, because Popen's own end waits for it."""
        with self.terminal.start("ssh", "head", "--", command) as busy:
            try:
                yield busy
            finally:
                busy.kill()

    def _become_a_person(self) -> None:
        environment = {**os.environ, "PHALANX_STATE_DIR": str(self.terminal.state)}
        subprocess.run([sys.executable, "-c", START], env=environment, check=True, timeout=300)
        api(self.terminal, "s3").create_bucket(Bucket="rights")
        # With a VPC, it does not stop after each command that finds no cluster.
        self._vpc = OwnVpc(api(self.terminal, "ec2"))
        printed = self.terminal.phalanx("policy").stdout
        iam = api(self.terminal, "iam")
        trust = json.dumps({"Version": "2012-10-17", "Statement": [TRUST]})
        role = iam.create_role(RoleName=PERSON, AssumeRolePolicyDocument=trust)["Role"]["Arn"]
        iam.put_role_policy(RoleName=PERSON, PolicyName="phalanx", PolicyDocument=printed)
        self.policies[PERSON] = statements_of(json.loads(printed))
        keys = api(self.terminal, "sts").assume_role(RoleArn=role, RoleSessionName="me")["Credentials"]
        os.environ["AWS_ENDPOINT_URL"] = iam.meta.endpoint_url
        os.environ["AWS_ACCESS_KEY_ID"] = keys["AccessKeyId"]
        os.environ["AWS_SECRET_ACCESS_KEY"] = keys["SecretAccessKey"]
        os.environ["AWS_SESSION_TOKEN"] = keys["SessionToken"]

    def _look_up(self) -> None:
        """Look up what a plan on AWS does of each choice."""
        ec2, iam = api(self.terminal, "ec2"), api(self.terminal, "iam")
        ec2.create_key_pair(KeyName="mine")
        ec2.create_placement_group(GroupName="mine", Strategy="cluster")
        document = {"Version": "2012-10-17", "Statement": {"Effect": "Allow", "Action": "ec2:*", "Resource": "*"}}
        own = iam.create_policy(PolicyName="own", PolicyDocument=json.dumps(document))["Policy"]["Arn"]
        files = OwnFileSystem(api(self.terminal, "efs"), self._vpc)
        of_type = [{"Name": "architecture", "Values": ["x86_64"]}]
        image = ec2.describe_images(Owners=["amazon"], Filters=of_type)["Images"][0]["ImageId"]
        place = {"InstancePlatform": "Linux/UNIX", "AvailabilityZone": "us-east-1a"}
        held = ec2.create_capacity_reservation(InstanceType="c5.large", InstanceCount=2, **place)["CapacityReservation"]
        network = {"head_subnet": self._vpc.head, "worker_subnet": self._vpc.workers}
        choices = (
            {"image": image, "key_pair": "mine", "placement": "mine", "policies": [own], "permissions_boundary": own},
            {"network": network, "file_system": files.id},
            {"capacity": held["CapacityReservationId"]},
            {"image": "ubuntu-24.04", "head": {"type": "m5.large"}, "capacity": "spot"},
        )
        aws = AwsHere(lambda service: boto3.client(service, region_name="us-east-1"))
        for chosen in choices:
            lookups.facts(aws, aws_spec(type="c5.large", nodes=2, **chosen), "")
        doctor.examine(aws, aws)
        # A local cloud with a reservation does not stop after the last cluster.
        ec2.cancel_capacity_reservation(CapacityReservationId=held["CapacityReservationId"])

    def _use_data(self) -> None:
        code = self._tmp / "code"
        write_package("objects", code, "node.sigv4")
        (code / "job.py").write_text(JOB)
        options = ("--directory", str(code), "--launcher", "exec", "-n", "1")
        self.terminal.phalanx("run", *options, "--", "python3", "job.py")

    def _nodes(self) -> dict[str, str]:
        done = self.terminal.phalanx("nodes", "--json", check=False)
        nodes = json.loads(done.stdout) if done.returncode == 0 else []
        return {node["role"] + node["name"]: node["instance_id"] for node in nodes if node["state"] == "ready"}

    def _wait_for_three_without(self, gone: str) -> None:
        def is_so(roster: Roster) -> bool:
            return len(roster.nodes) == 3 and gone not in (node.instance_id for node in roster.nodes)

        wait_for_roster(self.terminal, is_so, WAIT_S)
        nodes = self._nodes()
        assert len(nodes) == 3 and gone not in nodes.values()

    def _lose_a_worker(self) -> None:
        """The head ends a worker that is silent."""
        self._wait_for_three_without("")
        refusal = {"message": "We currently do not have sufficient c5.large capacity", "code": "InsufficientInstance"}
        break_on_purpose(self.terminal, fail_launch={**refusal, "times": 1})
        worker = next(instance for name, instance in self._nodes().items() if name.startswith("worker"))
        break_on_purpose(self.terminal, partition={"instance_id": worker, "cut": True})
        self._wait_for_three_without(worker)

    def _lose_the_head(self) -> None:
        """A worker ends it; the first launch of another fails, and its boot script, too."""
        head = next(instance for name, instance in self._nodes().items() if name.startswith("head"))
        self.terminal.on("head", "touch /efs/.fail-next-boot")
        refusal = {"message": "We currently do not have sufficient c5.large capacity", "code": "InsufficientInstance"}
        break_on_purpose(self.terminal, fail_launch={**refusal, "times": 1})
        break_on_purpose(self.terminal, partition={"instance_id": head, "cut": True})
        self._wait_for_three_without(head)

    def _change(self) -> None:
        file = self.terminal.directory / "phalanx.yaml"
        file.write_text(file.read_text() + "tags: {team: vision}\n")
        assert self.terminal.phalanx("up", check=False).returncode, "nobody is there to agree to it"
        self.terminal.phalanx("up", "--yes")

    def _add_by_hand(self) -> None:
        """Add what keeps a stack from being deleted: a policy of a role, and what GuardDuty makes in a VPC."""
        iam, ec2 = api(self.terminal, "iam"), api(self.terminal, "ec2")
        head = next(role for role in self.policies if role.startswith("rights-HeadRole"))
        iam.attach_role_policy(RoleName=head, PolicyArn="arn:aws:iam::123456789012:policy/own")
        mine = [{"Name": "tag:phalanx:cluster", "Values": ["rights"]}]
        subnet = ec2.describe_subnets(Filters=mine)["Subnets"][0]
        place = {"VpcId": subnet["VpcId"]}
        managed = [{"Key": "GuardDutyManaged", "Value": "true"}]
        named = {"GroupName": f"GuardDutyManagedSecurityGroup-{subnet['VpcId']}", "Description": "Managed by GuardDuty"}
        tags = [{"ResourceType": "security-group", "Tags": managed}]
        group = ec2.create_security_group(**place, **named, TagSpecifications=tags)["GroupId"]
        service = {"ServiceName": "com.amazonaws.us-east-1.guardduty-data", "VpcEndpointType": "Interface"}
        where = {"SubnetIds": [subnet["SubnetId"]], "SecurityGroupIds": [group]}
        tags = [{"ResourceType": "vpc-endpoint", "Tags": managed}]
        ec2.create_vpc_endpoint(**place, **service, **where, TagSpecifications=tags)

    def _keep_policies(self) -> None:
        iam = api(self.terminal, "iam")
        for role in (one["RoleName"] for one in iam.list_roles()["Roles"]):
            if role != PERSON:
                documents = [
                    iam.get_role_policy(RoleName=role, PolicyName=policy)["PolicyDocument"]
                    for policy in iam.list_role_policies(RoleName=role)["PolicyNames"]
                ]
                self.policies[role] = [one for document in documents for one in statements_of(document)]

    def used(self, role: str) -> list[Ask]:
        """Return what the local cloud recorded of a role."""
        return used(self.terminal.state / "local", role)


@pytest.fixture(scope="module")
def life(tmp_path_factory) -> Iterator[Life]:
    with pytest.MonkeyPatch.context() as patch, a_terminal(SPEC) as terminal:
        for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
            patch.setenv(name, "")
            patch.delenv(name)
        lived = Life(terminal, tmp_path_factory.mktemp("rights"))
        lived.live()
        yield lived


@pytest.mark.parametrize("role", ["HeadRole", "WorkerRole", "FunctionRole", "JobRole"])
def test_without_any_right_of_a_role_something_fails(life, role):
    (name,) = (one for one in life.policies if re.match(f"rights-{role}-", one))
    assert not_needed(life.policies[name], life.used(name), NOT_HERE) == []


def test_without_any_right_of_the_person_something_fails(life):
    assert not_needed(life.policies[PERSON], life.used(PERSON), NOT_HERE) == []
