"""A long boot script travels as parameters of the stack, and the document that `template` prints needs nothing else."""

from __future__ import annotations

import ipaddress
import json
import random
import re
import shlex
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest
from error_codes import assert_refused
from local_clouds import api, create_as_the_console
from own_vpc import OwnFileSystem, OwnVpc
from terminals import Terminal, a_cluster
from verdicts import is_gone

pytestmark = pytest.mark.cluster

ASK = """import sys, urllib.request as http
def ask(path, **more):
    return http.urlopen(http.Request("http://169.254.169.254/latest/" + path, **more)).read().decode()
token = ask("api/token", method="PUT", headers={"X-aws-ec2-metadata-token-ttl-seconds": "60"})
for path in sys.argv[1:]:
    print(ask("meta-data/" + path, headers={"X-aws-ec2-metadata-token": token}))
"""
CALL = """import boto3
print(len(boto3.client("ec2").describe_vpcs()["Vpcs"]), "VPCs")
boto3.client("ec2").describe_subnets()
"""
UNKNOWN_HOST = "-q -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"
AS_THEN = """'sudo su phalanx -c "mpiexec -n 4 -N 2 id -un"'"""
SCRIPT = f"test $(echo {random.Random(1).randbytes(30_000).hex()} | wc -c) = 60001\ntouch /etc/large-script-ran\n"


def spec(name: str, nodes: int) -> str:
    return json.dumps({"name": name, "nodes": nodes, "boot": SCRIPT})


@pytest.fixture(scope="module")
def terminal() -> Iterator[Terminal]:
    with a_cluster(spec("large", 3)) as made:
        yield made


def test_it_reaches_every_node(terminal):
    for node in ("worker1", "worker2"):
        terminal.on(node, "ls /etc/large-script-ran")
    (stack,) = api(terminal, "cloudformation").describe_stacks(StackName="large")["Stacks"]
    agent = [p["ParameterValue"] for p in stack["Parameters"] if re.fullmatch(r"Agent\d+", p["ParameterKey"])]
    assert len(agent) > 10 and {len(text) for text in agent[:-1]} == {4096}


def test_choices_of_machines_rights_and_tags_are_in_the_cluster(terminal):
    """The boundary allows nodes what they need, and jobs less than their own policies."""
    iam, ec2 = api(terminal, "iam"), api(terminal, "ec2")
    allowing = {"boundary": {"NotAction": "ec2:DescribeSubnets"}, "jobs": {"Action": "ec2:Describe*"}}
    policies = {}
    for policy_name, what in allowing.items():
        document = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Resource": "*", **what}]}
        made = iam.create_policy(PolicyName=policy_name, PolicyDocument=json.dumps(document))
        policies[policy_name] = made["Policy"]["Arn"]
    path = "/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id"
    image = api(terminal, "ssm").get_parameter(Name=path)["Parameter"]["Value"]
    chosen = {
        "name": "choices",
        "nodes": 2,
        "image": image,
        "tags": {"team": "vision", "cost center": "ML-7"},
        "disk": {"size_gib": 20, "iops": 4000},
        "head": {"type": "m5.large"},
        "network": {"cidr": "192.168.144.0/26"},
        "type": "g5.8xlarge",
        "efa": "yes",
        "placement": "cluster",
        "capacity": "spot",
        "storage": "head",
        "slots": 1,
        "policies": [policies["jobs"]],
        "permissions_boundary": policies["boundary"],
    }
    (terminal.directory / "choices.yaml").write_text(json.dumps(chosen))
    terminal.phalanx("up", "--file", "choices.yaml")
    tagged = [{"Name": "tag:team", "Values": ["vision"]}, {"Name": "tag:cost center", "Values": ["ML-7"]}]
    found = [one for r in ec2.describe_instances(Filters=tagged)["Reservations"] for one in r["Instances"]]
    instances = sorted(found, key=lambda one: ipaddress.ip_address(one["PrivateIpAddress"]))
    assert [one["ImageId"] for one in instances] == [image] * 2
    attached = [{"Name": "attachment.instance-id", "Values": [one["InstanceId"] for one in instances]}]
    assert [disk["Size"] for disk in ec2.describe_volumes(Filters=attached)["Volumes"]] == [20, 20]
    blocks = [ipaddress.ip_network(block) for block in ("192.168.144.0/27", "192.168.144.32/27")]
    assert [[ipaddress.ip_address(one["PrivateIpAddress"]) in block for block in blocks] for one in instances] == [
        [True, False],
        [False, True],
    ]
    assert [one["InstanceType"] for one in instances] == ["m5.large", "g5.8xlarge"]
    assert [one.get("InstanceLifecycle") for one in instances] == [None, "spot"]
    (group,) = ec2.describe_placement_groups(Filters=tagged)["PlacementGroups"]
    assert [one["Placement"].get("GroupName") for one in instances] == ["", group["GroupName"]]
    (only,) = terminal.phalanx("run", "-c", "choices", "--", "hostname").stdout.split()[1::2]
    assert only.replace("-", ".") == "ip." + instances[1]["PrivateIpAddress"]
    shared = "hostname > $EFS_MOUNT/from-worker2; grep nfs4 /etc/fstab"
    assert ":/efs /efs nfs4 _netdev," in terminal.phalanx("run", "-c", "choices", "--", "sh", "-c", shared).stdout
    on_head = terminal.phalanx("exec", "-c", "choices", "--node", "head", "--", "cat /efs/from-worker2").stdout
    assert only in on_head
    scratch = "touch $PHALANX_SCRATCH/here && findmnt -no TARGET -T $PHALANX_SCRATCH/here"
    assert "/opt/dlami/nvme" in terminal.phalanx("run", "-c", "choices", "--", "sh", "-c", scratch).stdout
    called = terminal.phalanx("run", "-c", "choices", "-n", "1", "--", sys.executable, "-c", CALL, check=False)
    assert "VPCs" in called.stdout
    assert "no permissions boundary allows the ec2:DescribeSubnets action" in called.stderr
    terminal.phalanx("down", "-c", "choices", "--yes")


def test_a_cluster_in_an_existing_vpc_leaves_it_as_it_was(terminal):
    own = OwnVpc(api(terminal, "ec2"), "172.20")
    files = OwnFileSystem(api(terminal, "efs"), own)
    before = own.contents()
    network = {"head_subnet": own.head, "worker_subnet": own.workers}
    described = {"name": "inside", "nodes": 2, "network": network, "file_system": files.id}
    (terminal.directory / "inside.yaml").write_text(json.dumps(described))
    (terminal.directory / "outside.yaml").write_text(
        json.dumps({"name": "outside", "nodes": 1, "file_system": files.id})
    )
    outside = terminal.phalanx("plan", "--file", "outside.yaml", "--json", check=False)
    assert_refused(outside, "file-system-elsewhere", files.id, f"in {own.vpc}", "a new VPC")
    own.ec2.modify_vpc_attribute(VpcId=own.vpc, EnableDnsHostnames={"Value": False})
    inside = terminal.phalanx("plan", "--file", "inside.yaml", "--json", check=False)
    assert_refused(inside, "unsuited-network", f"network: {own.vpc}", "DNS host names")
    own.ec2.modify_vpc_attribute(VpcId=own.vpc, EnableDnsHostnames={"Value": True})
    terminal.phalanx("up", "--file", "inside.yaml")
    addresses = terminal.phalanx("run", "-c", "inside", "--", "hostname").stdout
    assert "ip-172-20-0-" in addresses and "ip-172-20-1-" in addresses
    planned = terminal.phalanx("plan", "--file", "inside.yaml").stdout
    assert own.vpc in planned and f"{files.id} and its mount target in us-east-1b" in planned
    assert "nothing else of it" in terminal.phalanx("down", "-c", "inside", "--yes").stdout
    assert own.contents() == before
    files.delete()
    own.delete()


def test_the_printed_document_alone_makes_a_cluster_as_in_the_console(terminal, tmp_path):
    """The console puts a document of this size into a bucket of its own, and sends its URL.

    The cluster is then taken over: first without the key that its nodes accept, and then with it.
    """
    (terminal.directory / "console.yaml").write_text(spec("console", 2))
    document = terminal.phalanx("template", "--file", "console.yaml").stdout
    assert len(document) > 51_200
    users, administrators = a_key(tmp_path / "users"), a_key(tmp_path / "administrators")
    cloudformation, ec2 = api(terminal, "cloudformation"), api(terminal, "ec2")
    ec2.import_key_pair(KeyName="admins", PublicKeyMaterial=administrators.encode())
    given = {"SshPublicKey": users, "KeyPair": "admins"}
    parameters = [{"ParameterKey": key, "ParameterValue": value} for key, value in given.items()]
    create_as_the_console(terminal, "console", document, Parameters=parameters)
    stack = settled(cloudformation, "console")
    outputs = {output["OutputKey"]: output["OutputValue"] for output in stack["Outputs"]}
    assert stack["StackStatus"] == "CREATE_COMPLETE"
    assert json.loads(json.loads(outputs["Outcome"])["phalanx"])["missing"] == []

    adopt = ("adopt", "console", "--cloud", "local", "-i")
    keyless = terminal.phalanx(*adopt, str(tmp_path / "administrators"), check=False)
    assert "no private key" in keyless.stderr and "Traceback" not in keyless.stderr
    assert "2 of 2 nodes" in terminal.phalanx(*adopt, str(tmp_path / "users")).stdout
    chosen = ("-c", "console")
    assert "2 ready of 2" in terminal.phalanx("status", *chosen).stdout
    assert "worker2" in terminal.phalanx("run", *chosen, "--", "sh", "-c", "grep worker2 /etc/hosts").stdout
    log_in = ["ssh", "-F", str(terminal.state / "clusters/console/ssh_config"), "-i", str(tmp_path / "administrators")]
    options = ["-o", "ControlPath=none", "-l", "ubuntu", "deeplearning-worker1", "sudo id -u"]
    assert subprocess.run([*log_in, *options], capture_output=True, text=True, check=True).stdout == "0\n"
    (head,) = (
        one
        for page in ec2.get_paginator("describe_instances").paginate()
        for r in page["Reservations"]
        for one in r["Instances"]
        if one.get("PublicIpAddress") == outputs["HeadAddress"]
    )
    assert outputs["ClusterMasterPublicDNS"] == head["PublicDnsName"]
    typed = f"ssh {UNKNOWN_HOST} -i {tmp_path / 'administrators'} ubuntu@{outputs['ClusterMasterPublicDNS']} {AS_THEN}"
    assert terminal.typed(f'eval "$(phalanx local env)"\n{typed}').split()[-4:] == ["phalanx"] * 4
    keys = ("public-keys/", "public-keys/0/", "public-keys/0/openssh-key")
    assert metadata(terminal, *keys) == ["0=admins", "openssh-key", administrators]
    assert "nothing else of it" in terminal.phalanx("down", *chosen, "--yes").stdout


def test_the_link_of_the_page_launches_a_single_machine(terminal, tmp_path):
    """As the console opens it, with the person's public key, and the document that its `templateURL` names."""
    page = (Path(__file__).parents[2] / "docs/console.md").read_text()
    (link,) = re.findall(r"^https://console\S+#/stacks/create/review\?(\S+)$", page, re.MULTILINE)
    asked = dict(urllib.parse.parse_qsl(link))
    name, url = asked.pop("stackName"), asked.pop("templateURL")
    assert url == "https://my-bucket.s3.us-east-1.amazonaws.com/cluster.json"
    given = {key.removeprefix("param_"): value for key, value in asked.items()}
    given["SshPublicKey"] = a_key(tmp_path / "mine")
    (terminal.directory / "one.yaml").write_text(json.dumps({"name": name, "nodes": 4, "min": 2, "keep": "no"}))
    document = terminal.phalanx("template", "--file", "one.yaml").stdout
    parameters = [{"ParameterKey": key, "ParameterValue": value} for key, value in given.items()]
    create_as_the_console(terminal, name, document, Parameters=parameters)
    assert settled(api(terminal, "cloudformation"), name)["StackStatus"] == "CREATE_COMPLETE"
    adopted = terminal.phalanx("adopt", name, "--cloud", "local", "-i", str(tmp_path / "mine"))
    assert "1 of 1 node" in adopted.stdout
    (node,) = json.loads(terminal.phalanx("nodes", "-c", name, "--json").stdout)
    assert node["type"] == given["InstanceType"]
    assert "[0] ip-" in terminal.phalanx("run", "-c", name, "-n", "1", "--", "hostname").stdout
    assert is_gone(terminal.phalanx("down", "-c", name, "--yes", "--keep", "no").stdout)


def a_key(path: Path) -> str:
    """Make a key pair; return its public half."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)], check=True)
    return path.with_suffix(".pub").read_text().strip()


def metadata(terminal: Terminal, *paths: str) -> list[str]:
    """Read documents of the metadata service on the head of the adopted cluster, as root."""
    asked = f"python3 -c {shlex.quote(ASK)} {' '.join(paths)}"
    done = terminal.phalanx("exec", "-c", "console", "--sudo", "--json", "--node", "worker1", "--", asked)
    return json.loads(done.stdout)[0]["stdout"].splitlines()


AS_FROM_AN_IMAGE = """
for output in /proc/[0-9]*/fd/1; do
    [ "$(readlink $output)" != /opt/phalanx/agent.log ] || kill -9 $(echo $output | cut -d / -f 3)
done
export $(tr '\\0' '\\n' < /proc/1/environ | grep ^AWS_ENDPOINT_URL)
printf i-0123456789abcdef0 > /opt/phalanx/instance
touch /etc/ssh/phalanx/authorized_keys/guest
ls -i /etc/ssh/phalanx/id_ed25519
echo 'echo from another cluster' > /opt/phalanx/agent/phalanx/node/boot-script
printf 0 > /opt/phalanx/agent/phalanx/node/complete
umount -l /efs
mount -t tmpfs theirs /efs
python3 -IS /opt/phalanx/agent serve && ls /etc/ssh/phalanx/authorized_keys | grep guest
/var/lib/cloud/instance/scripts/part-001 > /tmp/boot
grep -c 'step: ' /tmp/boot
grep -c 'from another cluster' /tmp/boot
ls /etc/ssh/phalanx/authorized_keys | grep -c guest
ls -i /etc/ssh/phalanx/id_ed25519
findmnt -no SOURCE /efs | grep -c theirs
findmnt -no TARGET /efs | wc -l
"""


def test_a_machine_whose_image_was_made_from_a_node_becomes_a_new_node(terminal):
    """Its disk has another instance's state; its unit starts before its user data, as systemd would start it.

    The agent that runs is ended first. A new machine has none, and beside it the new one would report that its port is
    taken, at which the head has the node replaced.

    The cluster does not believe this node afterwards, because it has other keys.
    """
    done = terminal.phalanx("exec", "--sudo", "--json", "--node", "worker3", "--", AS_FROM_AN_IMAGE)
    (answer,) = json.loads(done.stdout)
    key, refusal, left, steps, scripts, kept, new_key, theirs, mounts = answer["stdout"].splitlines()
    assert "user data replaces it" in refusal and left == "guest", "the unit changes nothing"
    assert int(steps) == 9 and kept == "0" and new_key != key
    assert scripts == "0", "the boot script of the cluster of which the image was made"
    assert (mounts, theirs) == ("1", "0"), "its file system, which systemd mounts by fstab"


def settled(cloudformation, stack):
    deadline = time.monotonic() + 300
    while True:
        (found,) = cloudformation.describe_stacks(StackName=stack)["Stacks"]
        if not found["StackStatus"].endswith("IN_PROGRESS"):
            return found
        assert time.monotonic() < deadline, found["StackStatus"]
        time.sleep(0.2)
