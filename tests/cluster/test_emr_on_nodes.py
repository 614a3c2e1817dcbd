"""An EMR cluster of real nodes: bootstrap actions, steps, logs in a bucket, ssh as hadoop, and its size."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from emr_fakes import command
from emr_nodes import BUCKET, LOGS, Emr, served, wait_for
from error_codes import assert_refused
from local_clouds import api
from needed_rights import not_needed, rights
from terminals import Terminal
from verdicts import is_gone

pytestmark = pytest.mark.cluster
# What AWS's and users' bootstrap actions do: they ask what the node is, administer by sudo, and print.
# What the life of phalanx's cluster here does not use, and why it is a right nevertheless.
NOT_USED = {
    "ec2:AssociateAddress": "instances and interfaces have a statement each, by EC2's reference; not tried on AWS",
    "network-interface/*": "the same",
    "s3:ListBucket": "EMR's own programs look at the place of logs; not tried on AWS",
    "s3:::new-bucket": "the same",
}
SCRIPT = """\
#!/bin/bash
set -e
echo "$# arguments: $*"
grep -o '"isMaster": [a-z]*' /mnt/var/lib/info/instance.json
sudo sh -c 'echo "$(id -un)" > /etc/made-by'
echo "as $(id -un) in $PWD" >&2
[ ! -e /etc/fails ]
"""


@pytest.fixture(scope="module")
def emr() -> Iterator[Emr]:
    with served() as service:
        yield service


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


def test_a_bootstrap_action_that_hangs_ends_its_cluster_at_the_limit_and_its_output_is_in_the_bucket(emr):
    # EMR's limit is an hour; the weather's speed divides it.
    emr.terminal.phalanx("local", "weather", "1", "--only", "metadata", "--speed", "100")
    made = emr.run("#!/bin/sh\necho waits >&2\nsleep 1000\n", cores=0)
    reason = emr.reaches(made, "TERMINATED_WITH_ERRORS")["Status"]["StateChangeReason"]
    emr.terminal.phalanx("local", "weather", "off")
    instance = emr.instances(made)[0]["Ec2InstanceId"]
    assert reason["Message"] == f"On the master instance ({instance}), bootstrap action 1 timed out executing"
    assert emr.log(f"{made}/node/{instance}/bootstrap-actions/1/stderr") == "waits\n"


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


def unneeded(terminal: Terminal, role: str) -> list[str]:
    _, statements, used = rights(terminal, f"ours-{role}-")
    return not_needed(statements, used, NOT_USED)


def test_phalanx_makes_one_runs_jobs_on_it_resizes_it_and_makes_it_again_with_its_data_after_emr_has_ended_it(emr):
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
    for role in ("NodeRole", "EmrRole"):
        # A node sends its boot log some seconds after it has answered.
        wait_for(lambda role=role: not unneeded(terminal, role), f"each right of {role} to be used")
    terminal.on("head", "echo kept > /efs/file")
    (master,) = (node["instance_id"] for node in nodes if node["name"].endswith("worker1"))
    emr.ec2.terminate_instances(InstanceIds=[master])
    ended = "The master node was terminated"
    wait_for(lambda: ended in terminal.phalanx("status", "--json", check=False).stdout, ended)
    assert "the master node died" in terminal.phalanx("why", check=False).stdout
    assert ended in terminal.phalanx("up", check=False).stderr
    terminal.phalanx("down", "--yes", "--keep", "yes")
    terminal.phalanx("up")
    assert terminal.on("head", "cat /efs/file") == "kept\n"
    assert is_gone(terminal.phalanx("down", "--yes", "--keep", "no").stdout)


def test_nodes_with_gpus_count_them_and_jobs_stage_data_from_s3(emr):
    terminal = emr.terminal
    emr.s3.put_object(Bucket=BUCKET, Key="set/one.rec", Body=b"records")
    spec = f"name: gpus\ncloud: local-emr\nnodes: 2\nmin: 2\ntype: g4dn.12xlarge\nstorage: head\ndata: {{set: s3://{BUCKET}/set}}\n"
    (terminal.directory / "phalanx.yaml").write_text(f"{spec}emr: {{logs: {LOGS}}}\n")
    terminal.phalanx("local", "gpus", "4")
    terminal.phalanx("up")
    terminal.phalanx("local", "gpus", "0")
    nodes = json.loads(terminal.phalanx("nodes", "--json").stdout)
    assert [(node["gpus"], node["slots"]) for node in nodes] == [(4, 4)] * 2
    terminal.phalanx("data", "stage", "set")
    line = "echo $DEEPLEARNING_WORKER_GPU_COUNT $CUDA_VISIBLE_DEVICES $(cat /efs/data/set/one.rec)"
    job = terminal.phalanx("run", "--launcher", "tensorflow", "-N", "2", "--", "sh", "-c", line)
    seen = sorted(one.partition("] ")[2] for one in job.stdout.splitlines())
    assert seen == ["4 0,1 records"] * 2 + ["4 2,3 records"] * 2
    assert is_gone(terminal.phalanx("down", "--yes", "--keep", "no").stdout)


def test_one_in_a_subnet_and_groups_and_with_a_role_of_the_user_s_leaves_them_as_they_were(emr):
    terminal, iam = emr.terminal, api(emr.terminal, "iam")
    vpc = emr.ec2.describe_subnets(SubnetIds=[emr.subnet])["Subnets"][0]["VpcId"]
    groups = [emr.ec2.create_security_group(GroupName=one, Description=one, VpcId=vpc)["GroupId"] for one in ("m", "c")]
    keys = (
        f"logs: s3://emr-logs/own, node_role: EMR_EC2_DefaultRole, master_group: {groups[0]}, core_group: {groups[1]}"
    )
    spec = f"name: own\ncloud: local-emr\nnodes: 2\ntype: m5.xlarge\nslots: 1\nnetwork: {{head_subnet: {emr.subnet}}}\n"
    (terminal.directory / "phalanx.yaml").write_text(f"{spec}emr: {{{keys}}}\n")
    tag = "for-use-with-amazon-emr-managed-policies = true"
    facts = [f"emr: {name} has no tag {tag}" for name in (emr.subnet, *groups)]
    assert_refused(terminal.phalanx("up", "--json", check=False), "unsuited-network", *facts)
    tag = {"Key": "for-use-with-amazon-emr-managed-policies", "Value": "true"}
    emr.ec2.create_tags(Resources=[emr.subnet, *groups, vpc], Tags=[tag])
    emr.ec2.modify_vpc_attribute(VpcId=vpc, EnableDnsHostnames={"Value": True})
    terminal.phalanx("up")
    assert terminal.phalanx("run", "-n", "2", "--", "id", "-un").stdout.count("phalanx") == 2
    made = emr.api.list_clusters(ClusterStates=["WAITING"])["Clusters"]
    (own,) = (one["Id"] for one in made if one["Name"] == "own")
    assert emr.describe(own)["Ec2InstanceAttributes"]["EmrManagedMasterSecurityGroup"] == groups[0]
    assert iam.list_role_policies(RoleName="EMR_EC2_DefaultRole")["PolicyNames"] == ["allow", "phalanx-own"]
    share_its_file_system(emr, spec)
    assert is_gone(terminal.phalanx("down", "--yes", "--keep", "no").stdout)
    assert iam.list_role_policies(RoleName="EMR_EC2_DefaultRole")["PolicyNames"] == ["allow"]
    assert emr.ec2.describe_security_groups(GroupIds=groups)["SecurityGroups"]
    emr.ec2.delete_tags(Resources=[emr.subnet, *groups, vpc], Tags=[tag])


def share_its_file_system(emr: Emr, own: str) -> None:
    """Put a second cluster on the first one's file system: each can end while the other needs it, or says so."""
    terminal, efs = emr.terminal, api(emr.terminal, "efs")
    terminal.on("head", "echo of-own > /efs/file")
    ((file_system, target),) = [
        (one["FileSystemId"], one["MountTargetId"])
        for system in efs.describe_file_systems()["FileSystems"]
        for one in efs.describe_mount_targets(FileSystemId=system["FileSystemId"])["MountTargets"]
    ]
    beside = terminal.directory / "beside"
    beside.mkdir()
    spec = own.replace("own", "beside").replace("nodes: 2", "nodes: 1") + f"file_system: {file_system}\n"
    (beside / "phalanx.yaml").write_text(spec + "emr: {logs: s3://emr-logs/beside}\n")
    terminal.phalanx("up", "--file", str(beside / "phalanx.yaml"))
    line = "cat /efs/file; echo of-beside > /efs/file"
    assert terminal.phalanx("ssh", "-c", "beside", "--", line).stdout == "of-own\n"
    taken = terminal.phalanx("down", "-c", "own", "--yes", "--keep", "no", "--json", check=False)
    assert_refused(taken, "used-by-others", "beside uses", "`phalanx down -c beside`")
    lost = terminal.phalanx("down", "-c", "beside", "--yes", "--keep", "no", "--json", check=False)
    assert_refused(lost, "used-by-others", file_system, "beside's")
    assert "nothing else of it" in terminal.phalanx("down", "-c", "beside", "--yes").stdout
    assert terminal.on("head", "cat /efs/file") == "of-beside\n"
    left = efs.describe_mount_targets(FileSystemId=file_system)["MountTargets"]
    assert [one["MountTargetId"] for one in left] == [target]


@pytest.mark.parametrize(
    ("boot", "seconds", "said"), [("echo no; exit 3", 600, "exit 3"), ("sleep 1000", 10, "time is up after 9.0 s")]
)
def test_a_boot_that_fails_or_hangs_names_itself_and_leaves_nothing(emr, boot, seconds, said):
    spec = f"name: bad\ncloud: local-emr\nnodes: 1\ntype: m5.xlarge\nnode_timeout: {seconds}s\nboot: {boot}\n"
    (emr.terminal.directory / "phalanx.yaml").write_text(spec + "emr: {logs: s3://emr-logs/bad}\n")
    failed = emr.terminal.phalanx("up", check=False)
    assert failed.returncode == 4
    assert "'boot script' failed" in failed.stderr and said in failed.stderr
    assert "the stack was deleted" in failed.stderr
    assert "boot script" in emr.terminal.phalanx("why", check=False).stdout
    assert not [one for one in emr.api.list_clusters(ClusterStates=["WAITING"])["Clusters"] if one["Name"] == "bad"]
