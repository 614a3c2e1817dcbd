"""An EMR cluster that phalanx did not make: `aws emr create-cluster` with the two scripts, and its adoption."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aws_cli import AwsCli, aws_cli, install
from emr_nodes import BUCKET, Emr, create, served
from fleet_fakes import until
from local_clouds import api, endpoint

from phalanx.template.emr.scripts import texts

pytestmark = pytest.mark.cluster
EFS_SCRIPT, METADATA_SCRIPT = texts()
REGION = "us-east-1"
FROM_HERE = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "CidrIp": "203.0.113.1/32"}
# What `yarn node -list` prints on the master (Hadoop 3's NodeCLI); the local cloud has no YARN.
YARN = """yarn() {{ printf '%s\\n' 'Total Nodes:{count}' \
'         Node-Id	     Node-State	Node-Http-Address	Number-of-Running-Containers' {lines}; }}
"""


class Others(Emr):
    """The service in an account with a default VPC, an EFS file system in it, and one cluster of two nodes."""

    def prepare(self, aws: AwsCli) -> None:
        self.aws = aws
        self.efs = api(self.terminal, "efs")
        default = self.ec2.describe_subnets(Filters=[{"Name": "default-for-az", "Values": ["true"]}])["Subnets"]
        vpc = default[0]["VpcId"]
        self.nodes_group, self.efs_group = (self._group(vpc, name) for name in ("nodes", "efs"))
        nfs = {"IpProtocol": "tcp", "FromPort": 2049, "ToPort": 2049}
        rule = {**nfs, "UserIdGroupPairs": [{"GroupId": self.efs_group}]}
        self.ec2.authorize_security_group_ingress(GroupId=self.efs_group, IpPermissions=[rule])
        self.ec2.authorize_security_group_ingress(GroupId=self.nodes_group, **FROM_HERE)
        self.file_system = self.efs.create_file_system(CreationToken="theirs")["FileSystemId"]
        for subnet in default:
            self.efs.create_mount_target(
                FileSystemId=self.file_system, SubnetId=subnet["SubnetId"], SecurityGroups=[self.efs_group]
            )
        self.s3.put_object(Bucket=BUCKET, Key=EFS_SCRIPT, Body=texts()[EFS_SCRIPT].encode())

    def _group(self, vpc: str, name: str) -> str:
        return self.ec2.create_security_group(GroupName=name, Description=name, VpcId=vpc)["GroupId"]

    def create(self, count: int, script: str = "", *arguments: str) -> str:
        """Make a cluster by the command of AWS's guide, with a bootstrap action."""
        actions = ["--bootstrap-actions", f"Path={script},Args=[{','.join(arguments)}]"] if script else []
        groups = {
            "EmrManagedMasterSecurityGroup": self.nodes_group,
            "EmrManagedSlaveSecurityGroup": self.nodes_group,
            "AdditionalMasterSecurityGroups": f"[{self.efs_group}]",
            "AdditionalSlaveSecurityGroups": f"[{self.efs_group}]",
        }
        return create(self.aws, count, *actions, **groups)

    def state_of_nodes(self, cluster: str) -> list[str]:
        """Return what could be left on each node, without the processes of this login."""
        _master, *others = (node["PrivateIpAddress"] for node in self.instances(cluster, "RUNNING"))
        public = self.instances(cluster)[0]["PublicIpAddress"]
        found = [self.ssh("hadoop", public, f"sudo bash -c {shlex.quote(LEFT)}")]
        for other in others:
            there = f"ssh -o StrictHostKeyChecking=no {other} sudo bash -c {shlex.quote(shlex.quote(LEFT))}"
            found.append(self.ssh("hadoop", public, there, agent=True))
        return ["\n".join(line for line in one.splitlines() if not re.search(_OF_LOGIN, line)) for one in found]


_OF_LOGIN = r"sshd|bash -c|ps -eo|sort|sudo|controller"
# What phalanx could have left on a node.
LEFT = """\
getent passwd phalanx; ls -d /etc/phalanx* 2>/dev/null
ls -d /opt/phalanx /opt/deeplearning /etc/ssh/phalanx /var/lib/phalanx /home/phalanx 2>/dev/null
find /etc/ssh/*.d /etc/systemd/system /etc/profile.d /etc/udev -type f -o -type l 2>/dev/null
cat /etc/cron.deny /etc/at.deny 2>/dev/null
stat -c '%a %U' /efs
ip rule; ip -6 rule; cat /etc/hosts /etc/environment /etc/fstab; mount | wc -l; ps -eo user:20,args --no-headers | sort
"""


@pytest.fixture(scope="module")
def others() -> Iterator[Others]:
    install()
    with served() as service, aws_cli(endpoint(service.terminal), service.terminal.state) as aws:
        service.__class__ = Others
        service.prepare(aws)
        (service.terminal.directory / "phalanx.yaml").unlink()
        yield service


@pytest.fixture(scope="module")
def theirs(others: Others) -> str:
    made = others.create(2, f"s3://{BUCKET}/{EFS_SCRIPT}", others.file_system, REGION)
    others.reaches(made, "WAITING", "TERMINATED_WITH_ERRORS")
    assert others.describe(made)["Status"]["State"] == "WAITING", others.describe(made)["Status"]
    others.step(made, "sh", "-c", "echo shared > /efs/file")
    return made


def test_the_bootstrap_action_mounts_the_file_system_on_every_node(others, theirs):
    zone = others.describe(theirs)["Ec2InstanceAttributes"]["Ec2AvailabilityZone"]
    assert zone in {f"{REGION}{letter}" for letter in "abcdef"}
    assert others.step(theirs, "stat", "-c", "%U", "/efs") == ("COMPLETED", "hadoop\n")
    core = others.instances(theirs, "RUNNING")[1]
    host = others.instances(theirs)[0]["PublicIpAddress"]
    there = f"ssh -o StrictHostKeyChecking=no {core['PrivateIpAddress']} cat /efs/file"
    assert others.ssh("hadoop", host, there, agent=True) == "shared\n"


def test_the_metadata_script_writes_the_file_on_every_node_and_exports_the_variables(others, theirs):
    master, core = others.instances(theirs, "RUNNING")
    host, addresses = master["PublicIpAddress"], [node["PrivateIpAddress"] for node in (master, core)]
    others.ssh("hadoop", host, f"cat > {METADATA_SCRIPT}", texts()[METADATA_SCRIPT])
    line = f"{core['PrivateDnsName']}:8041\t        RUNNING\t{core['PrivateDnsName']}:8042\t   0"
    lost = "ip-10-0-0-9.ec2.internal:8041\t           LOST\tip-10-0-0-9.ec2.internal:8042\t   0"
    fake = YARN.format(count=2, lines=f"{shlex.quote(line)} {shlex.quote(lost)}")
    source = f"{fake}source {METADATA_SCRIPT} && env | grep ^DEEPLEARNING_ | sort"
    shown = others.ssh("hadoop", host, f"bash -c {shlex.quote(source)}", agent=True)
    expected = {"WORKERS_COUNT": "2", "WORKERS_PATH": "/home/hadoop/worker_ip_file", "WORKER_GPU_COUNT": "0"}
    assert shown.splitlines()[3:] == [f"DEEPLEARNING_{name}={value}" for name, value in expected.items()]
    there = f"cat worker_ip_file; ssh -o StrictHostKeyChecking=no {core['PrivateIpAddress']} cat worker_ip_file"
    listed = others.ssh("hadoop", host, there, agent=True).split()
    assert listed == sorted(addresses, key=lambda one: [int(part) for part in one.split(".")]) * 2
    # The local cloud's own YARN lists the same nodes; it may still know one that another test has ended.
    only = "yarn node -list | grep -o '^ip-[^\t ]*'; true"
    own = f"{core['PrivateDnsName']}:8041"
    until(lambda: others.ssh("hadoop", host, only).split() == [own], "YARN has the core node alone")
    others.ssh("hadoop", host, "rm worker_ip_file")
    others.ssh("hadoop", host, f"source {METADATA_SCRIPT}", agent=True)
    assert others.ssh("hadoop", host, there, agent=True).split() == listed
    # Later logins have the variables, too.
    assert others.ssh("hadoop", host, "bash -ic 'echo $DEEPLEARNING_WORKERS_COUNT' 2> /dev/null") == "2\n"


def test_in_the_shell_of_local_env_ssh_and_scp_reach_the_master_by_its_public_name(others, theirs):
    """As on AWS."""
    key, master = shlex.quote(str(others.key)), f"hadoop@{others.describe(theirs)['MasterPublicDnsName']}"
    shown = others.terminal.typed(f"""\
eval "$(phalanx local env)"
eval "$(phalanx local env)"
ssh -o StrictHostKeyChecking=no -i {key} {master} -t hostname
echo sent > sent && scp -i {key} sent {master}: && ssh -i {key} {master} cat sent
ssh-agent sh -c 'ssh-add -q {key} && ssh -A {master} ssh-add -L'
ssh -o ConnectTimeout=5 nobody@no-such-host.invalid true || echo as elsewhere: $?
""")
    host = others.instances(theirs)[0]["PrivateDnsName"].partition(".")[0]
    assert f"\n{host}\n" in shown.replace("\r", "") and "\nsent\n" in shown
    assert "\nssh-ed25519 " in shown, "the agent is forwarded"
    assert "Could not resolve hostname no-such-host.invalid" in shown and "as elsewhere: 255" in shown


def test_the_local_cloud_does_not_stop_under_an_emr_cluster(others, theirs):
    """It is in the default VPC and in no stack, so `phalanx down` of another cluster once ended it."""
    refused = others.terminal.phalanx("local", "stop", check=False)
    assert refused.returncode == 5
    assert all(node["Ec2InstanceId"] in refused.stderr for node in others.instances(theirs, "RUNNING"))


def test_without_yarn_the_metadata_script_says_so_and_leaves_nothing(others, theirs):
    host = others.instances(theirs)[0]["PublicIpAddress"]
    others.ssh("hadoop", host, f"cat > {METADATA_SCRIPT}", texts()[METADATA_SCRIPT])
    line = f"yarn() {{ false; }}; source {METADATA_SCRIPT} 2>&1; echo $?; declare -F | grep -c _dl_"
    shown = others.ssh("hadoop", host, f"bash -c {shlex.quote(line)} || true").splitlines()
    reason = "metadata_setup.sh: 'yarn node -list' failed: is this the master node, and does YARN run?"
    assert shown == [reason, "1", "0"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fs-1"], "needs two arguments, the id of an EFS file system and its region, and has 1: fs-1"),
        (["us-east-1", "fs-01234567"], "'us-east-1' is not the id of an EFS file system"),
    ],
)
def test_wrong_arguments_end_the_cluster_and_the_log_names_them(others, arguments, message):
    made = others.create(1, f"s3://{BUCKET}/{EFS_SCRIPT}", *arguments)
    reason = others.reaches(made, "TERMINATED_WITH_ERRORS")["Status"]["StateChangeReason"]
    assert reason["Code"] == "BOOTSTRAP_FAILURE"
    instance = others.instances(made)[0]["Ec2InstanceId"]
    until(lambda: message in others.log(f"{made}/node/{instance}/bootstrap-actions/1/stderr"), message)


def adopt(others: Others, cluster: str, *arguments: str, check: bool = True) -> Any:
    return others.terminal.phalanx(
        "adopt", "--emr", cluster, "--cloud", "local-emr", "-i", str(others.key), *arguments, check=check
    )


def test_a_cluster_is_adopted_runs_jobs_and_is_given_back_as_it_was(others, theirs):
    terminal, before = others.terminal, others.state_of_nodes(theirs)
    shown = adopt(others, theirs, "mine", "--yes")
    assert "policy   on the role EMR_EC2_DefaultRole" in shown.stderr
    assert "shared   /efs, which is mounted on all nodes" in shown.stderr
    assert "Cluster mine is known here now: 2 of 2 nodes." in shown.stdout
    assert "2 ready of 2" in terminal.phalanx("status").stdout
    addresses = {node["address"] for node in json.loads(terminal.phalanx("nodes", "--json").stdout)}
    assert addresses == {node["PrivateIpAddress"] for node in others.instances(theirs)}
    job = ["sh", "-c", "cat /home/hadoop/worker_ip_file /efs/file; id -un; echo $RANK > out-$RANK"]
    ran = terminal.phalanx("run", "--launcher", "exec", "-n", "2", "-N", "1", "--name", "first", "--", *job).stdout
    assert ran.count("phalanx") == ran.count("shared") == 2
    assert all(address in ran for address in addresses)
    assert "shared" in terminal.phalanx("logs", "first").stdout
    home = terminal.phalanx("get", "first", "out-1", str(terminal.directory)).stdout.strip()
    assert Path(home).read_text() == "1\n"
    assert terminal.phalanx("ssh", "deeplearning-worker2", "--", "hostname").stdout.startswith("ip-")
    assert "writable /efs: jobs, `put` and `data fetch` could not write at its top; its mode 755 gets" in shown.stderr
    assert_jobs_write_at_the_top(terminal)
    grow_and_shrink(others, theirs)
    assert "nothing is wrong" in terminal.phalanx("why", check=False).stdout.lower()
    ended = terminal.phalanx("down", "--yes")
    assert ended.stderr.count("is as it was before") == 2, ended.stderr
    assert f"Cluster mine is given back; its EMR cluster {theirs} continues" in ended.stdout
    assert others.describe(theirs)["Status"]["State"] == "WAITING"
    assert_is_again(others, theirs, before)
    iam = api(terminal, "iam")
    assert iam.list_role_policies(RoleName="EMR_EC2_DefaultRole")["PolicyNames"] == ["allow"]
    assert others.step(theirs, "cat", "/efs/file") == ("COMPLETED", "shared\n")


def assert_jobs_write_at_the_top(terminal: Any) -> None:
    """`put` and `data fetch` write below /efs, which belongs to hadoop; where they can't, they say what helps."""
    (terminal.directory / "labels.csv").write_text("1\n")
    terminal.phalanx("put", "labels.csv")
    assert terminal.phalanx("ssh", "--", "cat", "/efs/labels.csv").stdout == "1\n"
    terminal.phalanx("exec", "--sudo", "--", "chmod", "755", "/efs")
    for refused in (("put", "labels.csv", "more.csv"), ("data", "fetch", "mnist", "--from", "file:///nowhere/")):
        ended = terminal.phalanx(*refused, check=False)
        repair = re.search("`(phalanx exec --sudo -- [^`]*)`", ended.stderr + ended.stdout)
        assert ended.returncode and repair, ended
    terminal.phalanx(*shlex.split(repair[1])[1:])
    terminal.phalanx("put", "labels.csv", "more.csv")
    fetched = terminal.phalanx("data", "fetch", "mnist", "--from", "file:///nowhere/", check=False)
    assert "Permission denied" not in fetched.stderr + fetched.stdout


def assert_is_again(others: Others, cluster: str, before: list[str]) -> None:
    """Wait until nothing on the nodes differs from before: some processes live for a moment."""
    differing = ["unknown"]
    for _ in range(30):
        pairs = zip(others.state_of_nodes(cluster), before, strict=True)
        differing = [line for now, was in pairs for line in set(now.splitlines()) ^ set(was.splitlines())]
        if not differing:
            return
        time.sleep(1)
    raise AssertionError("\n".join(differing))


def grow_and_shrink(others: Others, cluster: str) -> None:
    """Have EMR start a core node by `scale`, with the agent, and end it again."""
    terminal, before = others.terminal, {one["Ec2InstanceId"] for one in others.instances(cluster, "RUNNING")}
    assert "has 3 of 3 nodes" in terminal.phalanx("scale", "3").stdout
    assert len(others.instances(cluster, "RUNNING")) == 3
    job = terminal.phalanx("run", "--launcher", "exec", "-n", "3", "-N", "1", "--", "sh", "-c", "cat /efs/file; id -un")
    assert job.stdout.count("shared") == job.stdout.count("phalanx") == 3
    assert "has 2 of 2 nodes" in terminal.phalanx("scale", "2", "--yes").stdout
    until(lambda: {one["Ec2InstanceId"] for one in others.instances(cluster, "RUNNING")} == before, "the new node ends")


def test_what_keeps_a_cluster_from_being_adopted_is_named_and_nothing_is_left(others, theirs):
    assert "no EMR cluster j-0" in adopt(others, "j-0", "--yes", check=False).stderr
    assert "add --yes" in adopt(others, theirs, check=False).stderr
    others.ec2.revoke_security_group_ingress(GroupId=others.nodes_group, **FROM_HERE)
    shut = adopt(others, theirs, "--yes", check=False).stderr
    others.ec2.authorize_security_group_ingress(GroupId=others.nodes_group, **FROM_HERE)
    assert f"`aws ec2 authorize-security-group-ingress --group-id {others.nodes_group}" in shut
    other = others.terminal.directory / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)], check=True, timeout=120)
    refused = adopt(others, theirs, "--yes", "-i", str(other), check=False).stderr
    assert theirs in refused and "as hadoop" in refused
    assert "does not accept" in refused
    assert "private key of mine" in refused
    others.step(theirs, "sudo", "sh", "-c", "mkdir -p /data-half && mount --bind /data-half /data-half")
    half = adopt(others, theirs, "--yes", "--shared", "/data-half", check=False).stderr
    core = others.instances(theirs, "RUNNING")[1]["Ec2InstanceId"]
    assert "/data-half is mounted" in half and f"not on {core}" in half
    others.step(theirs, "sudo", "umount", "/data-half")
    others.step(theirs, "sudo", "useradd", "-u", "2000", "phalanx")
    taken = adopt(others, theirs, "--yes", check=False).stderr
    assert others.instances(theirs)[0]["Ec2InstanceId"] in taken and "group phalanx" in taken
    others.step(theirs, "sudo", "userdel", "-r", "phalanx")
    assert json.loads(others.terminal.phalanx("ls", "--json").stdout) == []
    assert not list((others.terminal.state / "clusters").glob("*"))


def test_an_adoption_that_fails_is_undone(others, theirs):
    others.step(theirs, "sudo", "touch", "/data-blocked")
    before = others.state_of_nodes(theirs)
    failed = adopt(others, theirs, "bad", "--yes", "--shared", "/data-blocked", check=False)
    assert failed.returncode == 4
    assert theirs in failed.stderr and "/data-blocked" in failed.stderr
    assert_is_again(others, theirs, before)
    stacks = api(others.terminal, "cloudformation").list_stacks(
        StackStatusFilter=["CREATE_COMPLETE", "ROLLBACK_COMPLETE"]
    )
    assert stacks["StackSummaries"] == []
    assert not list((others.terminal.state / "clusters").glob("*"))


def test_without_a_file_system_the_master_serves_the_shared_directory_and_files_go_both_ways(others, theirs):
    terminal = others.terminal
    shown = adopt(others, theirs, "served", "--yes", "--shared", "/data-served").stderr
    assert "shared   /data-served of the master's disk, over NFS: nothing is mounted there" in shown
    (terminal.directory / "data").write_text("data\n")
    terminal.phalanx("put", "data")
    line = "cat /data-served/data; uname -n > /data-served/from-$RANK"
    ran = terminal.phalanx("run", "--launcher", "exec", "-n", "2", "-N", "1", "--", "sh", "-c", line)
    assert ran.stdout.count("data") == 2
    assert others.step(theirs, "ls", "/data-served")[1].split() == ["data", "from-0", "from-1"]
    assert f"its EMR cluster {theirs} continues" in terminal.phalanx("down", "--yes").stdout


def test_one_that_another_machine_adopted_is_taken_over_by_its_name(others, theirs, monkeypatch):
    terminal = others.terminal
    adopt(others, theirs, "shared-one", "--yes")
    key = terminal.state / "clusters/shared-one/id_ecdsa"
    copy = terminal.directory / "copy"
    shutil.copy(key, copy)
    shutil.rmtree(terminal.state / "clusters/shared-one")
    shown = terminal.phalanx("adopt", "shared-one", "--cloud", "local-emr", "-i", str(copy)).stdout
    assert "Cluster shared-one is known here now: 2 of 2 nodes." in shown
    assert terminal.phalanx("ssh", "--", "id", "-un").stdout == "phalanx\n"
    again = adopt(others, theirs, "twice", "--yes", check=False).stderr
    assert again.count("is a node of cluster shared-one") == 2
    assert (
        f"Cluster shared-one is given back; its EMR cluster {theirs} continues" in terminal.phalanx("down", "-y").stdout
    )


def test_when_its_user_ends_an_adopted_cluster_it_is_said_and_down_removes_the_rest(others):
    terminal, made = others.terminal, others.create(1)
    others.reaches(made, "WAITING")
    assert "1 of 1 node." in adopt(others, made, "brief", "--yes").stdout
    others.api.terminate_job_flows(JobFlowIds=[made])
    others.reaches(made, "TERMINATED")
    assert "EMR has ended the cluster (Terminated by user request)" in terminal.phalanx("status", check=False).stdout
    terminal.phalanx("down", "--yes")
    assert json.loads(terminal.phalanx("ls", "--json").stdout) == []
    assert api(terminal, "iam").list_role_policies(RoleName="EMR_EC2_DefaultRole")["PolicyNames"] == ["allow"]
