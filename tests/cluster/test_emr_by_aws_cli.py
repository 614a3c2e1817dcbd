"""An EMR cluster by AWS's own command line, as AWS's guide to deep learning on EMR of 2018 makes and uses one."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from aws_cli import AwsCli, RefusedByCliError, aws_cli, install
from emr_fakes import LABEL
from emr_nodes import LOGS, Emr, create, served, wait_for
from local_clouds import endpoint

from localcloud.api.moto_setup import AMAZON_LINUX

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def emr() -> Iterator[Emr]:
    install()
    with served() as service:
        yield service


@pytest.fixture(scope="module")
def aws(emr: Emr) -> Iterator[AwsCli]:
    with aws_cli(endpoint(emr.terminal), emr.terminal.state) as run:
        yield run


@pytest.fixture(scope="module")
def cluster(aws: AwsCli) -> str:
    made = create(aws, 2, name="by-hand")
    aws("emr", "wait", "cluster-running", "--cluster-id", made)
    return made


def typed(emr: Emr, aws: AwsCli, script: str) -> str:
    """Run lines in the shell of `phalanx local env`, with this AWS CLI."""
    line = f"export AWS_DEFAULT_REGION=us-east-1\n{aws.defined}"
    return emr.terminal.typed(f'eval "$(phalanx local env)"\n{line}\n{script}')


def test_describe_cluster_shows_what_was_asked_for_with_its_groups(aws, cluster):
    shown = aws("emr", "describe-cluster", "--cluster-id", cluster)["Cluster"]
    assert (shown["Id"], shown["Name"], shown["Status"]["State"]) == (cluster, "by-hand", "WAITING")
    assert (shown["ReleaseLabel"], shown["CustomAmiId"]) == (LABEL, AMAZON_LINUX["x86_64"])
    assert shown["LogUri"] == LOGS.replace("s3:", "s3n:") + "/"
    attributes = shown["Ec2InstanceAttributes"]
    assert (attributes["Ec2KeyName"], attributes["IamInstanceProfile"]) == ("mine", "EMR_EC2_DefaultRole")
    groups = {one["InstanceGroupType"]: one["RunningInstanceCount"] for one in shown["InstanceGroups"]}
    assert groups == {"MASTER": 1, "CORE": 1}
    listed = aws("emr", "list-clusters", "--active", "--query", "Clusters[].Id", "--output", "json")
    assert listed == [cluster]


def test_list_instances_shows_each_node_and_chooses_by_group_and_state(aws, cluster):
    master = aws("emr", "describe-cluster", "--cluster-id", cluster)["Cluster"]["MasterPublicDnsName"]
    found = instances(aws, cluster)
    assert [one["Status"]["State"] for one in found] == ["RUNNING", "RUNNING"]
    (of_master,) = instances(aws, cluster, "--instance-group-types", "MASTER")
    assert of_master["PublicDnsName"] == master
    assert instances(aws, cluster, "--instance-group-types", "CORE") == [one for one in found if one != of_master]
    assert instances(aws, cluster, "--instance-states", "TERMINATED") == []


def instances(aws: AwsCli, cluster: str, *more: str) -> list[dict[str, Any]]:
    return aws("emr", "list-instances", "--cluster-id", cluster, *more)["Instances"]


def test_steps_that_work_and_fail_are_reported_and_their_logs_are_in_the_bucket(aws, cluster):
    good, bad = add_steps(aws, cluster, "echo counted", "echo why it failed >&2; exit 3")
    aws("emr", "wait", "step-complete", "--cluster-id", cluster, "--step-id", good)
    with pytest.raises(RefusedByCliError, match="Waiter StepComplete failed"):
        aws("emr", "wait", "step-complete", "--cluster-id", cluster, "--step-id", bad)
    # Other tests add steps of their own.
    listed = aws("emr", "list-steps", "--cluster-id", cluster, "--step-ids", good, bad)["Steps"]
    states = {one["Id"]: one["Status"]["State"] for one in listed}
    assert states == {good: "COMPLETED", bad: "FAILED"}
    step = aws("emr", "describe-step", "--cluster-id", cluster, "--step-id", bad)["Step"]
    log = step["Status"]["FailureDetails"]["LogFile"]
    assert log == f"{LOGS}/{cluster}/steps/{bad}/stderr.gz"
    listed = aws("s3", "ls", f"{LOGS}/{cluster}/steps/{good}/").split()
    assert [name for name in listed if name.endswith(".gz")] == ["controller.gz", "stderr.gz", "stdout.gz"]


def add_steps(aws: AwsCli, cluster: str, *lines: str) -> list[str]:
    """Add steps that run a line each on the master."""
    command = {"Type": "CUSTOM_JAR", "Jar": "command-runner.jar", "ActionOnFailure": "CONTINUE"}
    steps = [{**command, "Name": line, "Args": ["bash", "-c", line]} for line in lines]
    return aws("emr", "add-steps", "--cluster-id", cluster, "--steps", json.dumps(steps))["StepIds"]


def test_ssh_put_and_get_reach_the_master_as_hadoop_once_its_group_lets_them(emr, aws, cluster, tmp_path):
    emr.allow_ssh(cluster)
    (tmp_path / "sent").write_text("a file\n")
    named = f"--cluster-id {cluster} --key-pair-file {shlex.quote(str(emr.key))}"
    shown = typed(
        emr,
        aws,
        f"""\
aws emr ssh {named} --command 'id -un; hostname'
aws emr put {named} --src {tmp_path}/sent --dest received
aws emr get {named} --src received --dest {tmp_path}/back
""",
    ).replace("\r", "")
    master = instances(aws, cluster, "--instance-group-types", "MASTER")[0]
    assert f"\nhadoop\n{master['PrivateDnsName'].partition('.')[0]}\n" in shown
    assert (tmp_path / "back").read_text() == "a file\n"


def test_without_applications_hadoop_is_installed(emr, aws, cluster):
    shown = aws("emr", "describe-cluster", "--cluster-id", cluster)["Cluster"]
    assert [one["Name"] for one in shown["Applications"]] == ["Hadoop"]
    core = instances(aws, cluster, "--instance-group-types", "CORE")[0]["PrivateDnsName"]
    wait_for(lambda: core in emr.step(cluster, "bash", "-lc", "yarn node -list")[1], "YARN has the core node")


def test_terminate_clusters_leaves_nothing(emr, aws):
    made = create(aws, 1)
    aws("emr", "wait", "cluster-running", "--cluster-id", made)
    aws("emr", "terminate-clusters", "--cluster-ids", made)
    aws("emr", "wait", "cluster-terminated", "--cluster-id", made)
    status = aws("emr", "describe-cluster", "--cluster-id", made)["Cluster"]["Status"]
    assert (status["State"], status["StateChangeReason"]["Code"]) == ("TERMINATED", "USER_REQUEST")
    (gone,) = instances(aws, made)
    assert gone["Status"]["State"] == "TERMINATED"
    assert not (emr.terminal.state / "local/nodes" / gone["Ec2InstanceId"]).exists()
    with pytest.raises(RefusedByCliError, match="ValidationException"):
        add_steps(aws, made, "true")


@pytest.mark.parametrize("command", ["describe-cluster", "list-instances", "ssh"])
def test_a_cluster_that_does_not_exist_is_refused_in_emr_s_words(aws, command):
    more = ("--key-pair-file", "key.pem") if command == "ssh" else ()
    with pytest.raises(RefusedByCliError, match="Cluster id 'j-0000000000000' is not valid"):
        aws("emr", command, "--cluster-id", "j-0000000000000", *more)
