"""EMR clusters through the API: states, reasons, sizes, steps and deaths. The tests play the instances' controllers."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator

import pytest
from botocore.exceptions import ClientError
from emr_fakes import ACTION, Emr, command
from fleet_fakes import forget_resources, until
from stack_fakes import stacks


@pytest.fixture(scope="module")
def emr(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emr]:
    with stacks(tmp_path_factory.mktemp("state")) as cloud:
        yield Emr(cloud)
        forget_resources(cloud.context.account)


def test_a_cluster_waits_for_steps_once_all_instances_have_run_their_bootstrap_actions(emr):
    cluster = emr.run(BootstrapActions=[ACTION], Tags=[{"Key": "team", "Value": "vision"}])
    master, *cores = emr.instances(cluster)
    about = emr.report(master, "start")
    assert about["actions"] == [{"number": 1, "path": "s3://bucket/first.sh", "args": ["a", "b c"], "limit_s": 3600}]
    assert about["info"]["instance.json"]["isMaster"]
    assert about["info"]["job-flow.json"]["masterPrivateDnsName"] == master["PrivateDnsName"]
    assert emr.state(cluster) == "BOOTSTRAPPING"
    emr.report(master, "ready")
    for core in cores:
        assert not emr.report(core, "start")["info"]["instance.json"]["isMaster"]
        assert emr.state(cluster) == "BOOTSTRAPPING"
        emr.report(core, "ready")
    assert emr.describe(cluster)["Status"]["State"] == "WAITING"
    assert emr.describe(cluster)["MasterPublicDnsName"] == master["PrivateDnsName"]
    assert emr.group(cluster)["RunningInstanceCount"] == 2
    assert not emr.report(master, "start")["actions"], "actions run once, also if the instance restarts"


def test_instances_have_the_tags_groups_and_profile_of_their_cluster(emr):
    cluster = emr.run(Tags=[{"Key": "team", "Value": "vision"}])
    master = emr.instances(cluster, "MASTER")[0]
    ec2 = emr.cloud.client("ec2")
    found = ec2.describe_instances(InstanceIds=[master["Ec2InstanceId"]])["Reservations"][0]["Instances"][0]
    assert {tag["Key"]: tag["Value"] for tag in found["Tags"]} == {
        "team": "vision",
        "aws:elasticmapreduce:job-flow-id": cluster,
        "aws:elasticmapreduce:instance-group-role": "MASTER",
    }
    assert found["IamInstanceProfile"]["Arn"].endswith("/EMR_EC2_DefaultRole")
    assert [group["GroupName"] for group in found["SecurityGroups"]] == ["ElasticMapReduce-Master-Private"]
    attributes = emr.describe(cluster)["Ec2InstanceAttributes"]
    assert attributes["EmrManagedMasterSecurityGroup"] == found["SecurityGroups"][0]["GroupId"]
    assert attributes["ServiceAccessSecurityGroup"]


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("exit", "On the master instance ({}), bootstrap action 1 returned a non-zero return code"),
        ("timeout", "On the master instance ({}), bootstrap action 1 timed out executing"),
        ("download", "Master instance ({}) failed attempting to download bootstrap action 1 file from S3"),
    ],
)
def test_a_bootstrap_action_that_fails_on_the_master_ends_the_cluster(emr, how, expected):
    cluster = emr.run(BootstrapActions=[ACTION], LogUri="s3://logs/here/")
    master = emr.instances(cluster)[0]
    emr.report(master, "start")
    emr.report(master, "failed", number=1, how=how)
    state, code, message = emr.ended(cluster)
    assert (state, code) == ("TERMINATED_WITH_ERRORS", "BOOTSTRAP_FAILURE")
    assert message == expected.format(master["Ec2InstanceId"])
    data = {
        name: value
        for one in emr.describe(cluster)["Status"]["ErrorDetails"][0]["ErrorData"]
        for name, value in one.items()
    }
    assert data["primary-instance-id"] == master["Ec2InstanceId"]
    assert data["amazon-s3-path"] == f"s3://logs/here/{cluster}/node/{master['Ec2InstanceId']}/bootstrap-actions/1/"
    until(lambda: not emr.instances(cluster))


def test_a_bootstrap_action_that_fails_on_a_core_instance_names_it(emr):
    cluster = emr.run(BootstrapActions=[ACTION])
    core = emr.instances(cluster, "CORE")[0]
    emr.report(core, "start")
    emr.report(core, "failed", number=1, how="exit")
    instance = core["Ec2InstanceId"]
    expected = f"On 1 slave instance (including {instance}), bootstrap action 1 returned a non-zero return code"
    assert emr.ended(cluster)[1:] == ("BOOTSTRAP_FAILURE", expected)


def test_a_cluster_that_must_not_stay_alive_ends_after_its_steps(emr):
    cluster = emr.run(0, Instances={"KeepJobFlowAliveWhenNoSteps": False}, Steps=[command("true")])
    emr.bootstrap(cluster)
    (master,) = emr.instances(cluster)
    assert emr.state(cluster) == "RUNNING"
    step = emr.report(master, "next")["step"]
    assert step["args"] == ["true"]
    emr.report(master, "done", step=step["id"], code=0)
    assert emr.ended(cluster) == ("TERMINATED", "ALL_STEPS_COMPLETED", "Steps completed")


@pytest.mark.parametrize(
    ("action", "state", "second"),
    [("CONTINUE", "RUNNING", "PENDING"), ("CANCEL_AND_WAIT", "WAITING", "CANCELLED")],
)
def test_a_step_that_fails_lets_the_others_go_on_or_cancels_them(emr, action, state, second):
    cluster = emr.ready(0, LogUri="s3://logs")
    (master,) = emr.instances(cluster)
    given = [command("false", ActionOnFailure=action), command("true", ActionOnFailure=action)]
    steps = emr.api.add_job_flow_steps(JobFlowId=cluster, Steps=given)["StepIds"]
    assert emr.report(master, "next")["step"]["id"] == steps[0]
    emr.report(master, "done", step=steps[0], code=1)
    found = emr.step(cluster, steps[0])["Status"]
    assert found["State"] == "FAILED"
    assert found["FailureDetails"]["LogFile"] == f"s3://logs/{cluster}/steps/{steps[0]}/stderr.gz"
    assert (emr.state(cluster), emr.step(cluster, steps[1])["Status"]["State"]) == (state, second)


def test_a_step_that_fails_ends_the_cluster_if_it_says_so(emr):
    cluster = emr.ready(0)
    (master,) = emr.instances(cluster)
    given = command("false", ActionOnFailure="TERMINATE_CLUSTER")
    (step,) = emr.api.add_job_flow_steps(JobFlowId=cluster, Steps=[given])["StepIds"]
    emr.report(master, "next")
    emr.report(master, "done", step=step, code=1)
    assert emr.ended(cluster) == ("TERMINATED_WITH_ERRORS", "STEP_FAILURE", "Shut down as step failed")


def test_a_step_can_be_cancelled_before_and_while_it_runs(emr):
    cluster = emr.ready(0)
    (master,) = emr.instances(cluster)
    steps = emr.api.add_job_flow_steps(JobFlowId=cluster, Steps=[command("sleep"), command("true")])["StepIds"]
    emr.report(master, "next")
    assert not emr.report(master, "tick")["stop"]
    answers = emr.api.cancel_steps(ClusterId=cluster, StepIds=steps)["CancelStepsInfoList"]
    assert [answer["Status"] for answer in answers] == ["SUBMITTED", "SUBMITTED"]
    assert emr.report(master, "tick")["stop"]
    emr.report(master, "done", step=steps[0], code=-15)
    assert [emr.step(cluster, step)["Status"]["State"] for step in steps] == ["CANCELLED", "CANCELLED"]
    assert emr.state(cluster) == "WAITING"


def test_a_group_grows_and_shrinks_by_the_newest_or_the_chosen_instances(emr):
    cluster = emr.ready(2)
    first, second = [core["Ec2InstanceId"] for core in emr.instances(cluster, "CORE")]
    emr.resize(cluster, 3)
    assert emr.group(cluster)["Status"]["State"] == "RESIZING"
    emr.bootstrap(cluster)
    assert emr.group(cluster)["Status"]["State"] == "RUNNING"
    emr.resize(cluster, 2)
    assert [core["Ec2InstanceId"] for core in emr.instances(cluster, "CORE")] == [first, second]
    emr.resize(cluster, 1, EC2InstanceIdsToTerminate=[first])
    assert [core["Ec2InstanceId"] for core in emr.instances(cluster, "CORE")] == [second]
    until(lambda: first in {instance for instance, _silent in emr.cloud.runner.killed})
    assert emr.state(cluster) == "WAITING"


def test_a_group_stops_to_grow_after_three_instances_that_failed_until_its_size_is_set_again(emr):
    cluster = emr.ready(1, BootstrapActions=[ACTION])
    emr.resize(cluster, 2)
    for _ in range(3):
        new = until(lambda: [i for i in emr.instances(cluster, "CORE") if i["Status"]["State"] == "PROVISIONING"])[0]
        emr.report(new, "start")
        emr.report(new, "failed", number=1, how="exit")
    until(lambda: emr.group(cluster)["Status"]["State"] == "SUSPENDED")
    assert len(emr.instances(cluster, "CORE")) == 1
    assert emr.state(cluster) == "WAITING"
    emr.resize(cluster, 2)
    emr.bootstrap(cluster)
    assert emr.group(cluster)["Status"]["State"] == "RUNNING"


def test_a_core_instance_that_dies_is_replaced(emr):
    cluster = emr.ready(1)
    (core,) = emr.instances(cluster, "CORE")
    emr.die(core)
    new = until(lambda: [one for one in emr.instances(cluster, "CORE") if one["Id"] != core["Id"]])
    assert new[0]["Status"]["State"] == "PROVISIONING"
    emr.bootstrap(cluster)
    assert emr.state(cluster) == "WAITING"


def test_a_master_that_dies_ends_the_cluster(emr):
    cluster = emr.ready(1)
    emr.die(emr.instances(cluster, "MASTER")[0])
    assert emr.ended(cluster) == ("TERMINATED_WITH_ERRORS", "INSTANCE_FAILURE", "The master node was terminated")


def test_a_cluster_whose_core_instances_end_before_they_are_ready_ends_after_the_third(emr):
    cluster = emr.run(1)
    for _ in range(3):
        core = until(lambda: emr.instances(cluster, "CORE"))[0]
        emr.die(core)
        until(lambda core=core: core["Id"] not in [one["Id"] for one in emr.instances(cluster, "CORE")])
    expected = ("TERMINATED_WITH_ERRORS", "INSTANCE_FAILURE", "The CORE instances failed to start")
    assert emr.ended(cluster) == expected


def test_one_of_three_masters_that_dies_is_replaced(emr):
    master = {"InstanceRole": "MASTER", "InstanceType": "m5.xlarge", "InstanceCount": 3}
    cluster = emr.run(2, Instances={"InstanceGroups": [master]})
    emr.bootstrap(cluster)
    emr.die(emr.instances(cluster, "MASTER")[0])
    until(lambda: len([i for i in emr.instances(cluster) if i["Status"]["State"] == "PROVISIONING"]) == 1)
    assert emr.state(cluster) == "WAITING"


def test_a_protected_cluster_and_its_instances_are_not_terminated(emr):
    cluster = emr.ready(0, Instances={"TerminationProtected": True})
    (master,) = emr.instances(cluster)
    with pytest.raises(ClientError, match=r"ValidationException.*termination protected"):
        emr.api.terminate_job_flows(JobFlowIds=[cluster])
    with pytest.raises(ClientError, match="OperationNotPermitted"):
        emr.die(master)
    emr.api.set_termination_protection(JobFlowIds=[cluster], TerminationProtected=False)
    emr.api.terminate_job_flows(JobFlowIds=[cluster])
    assert emr.ended(cluster) == ("TERMINATED", "USER_REQUEST", "Terminated by user request")


def test_what_runs_is_stopped_first_so_that_its_logs_are_stored(emr):
    cluster = emr.run(0, BootstrapActions=[ACTION])
    (master,) = emr.instances(cluster)
    emr.report(master, "start")
    emr.api.terminate_job_flows(JobFlowIds=[cluster])
    assert emr.state(cluster) == "TERMINATING"
    assert emr.report(master, "tick")["stop"]
    emr.report(master, "done")
    assert emr.ended(cluster)[0] == "TERMINATED"


def test_a_controller_that_does_not_answer_delays_the_end_for_seconds_only(emr):
    cluster = emr.run(0, BootstrapActions=[ACTION])
    emr.report(emr.instances(cluster)[0], "start")
    emr.api.terminate_job_flows(JobFlowIds=[cluster])
    emr.cloud.clock.advance(10)
    assert emr.ended(cluster)[0] == "TERMINATED"


def test_clusters_and_steps_are_listed_newest_first_by_state(emr):
    first, second = emr.ready(0), emr.run(0)
    listed = emr.api.list_clusters()["Clusters"]
    assert [one["Id"] for one in listed][:2] == [second, first]
    waiting = emr.api.list_clusters(ClusterStates=["WAITING"])["Clusters"]
    assert waiting[0]["Id"] == first
    steps = emr.api.add_job_flow_steps(JobFlowId=first, Steps=[command("a"), command("b")])["StepIds"]
    assert [one["Id"] for one in emr.api.list_steps(ClusterId=first)["Steps"]] == steps[::-1]
    assert emr.api.list_bootstrap_actions(ClusterId=first)["BootstrapActions"] == []


def test_a_token_that_belongs_to_no_instance_is_refused(emr):
    shown: list[str] = []
    environ = {"REQUEST_METHOD": "POST", "PATH_INFO": "/_emr/guess/ready", "wsgi.input": io.BytesIO()}
    emr.cloud.app(environ, lambda status, _headers: shown.append(status))
    assert shown == ["404 Not Found"]


def test_root_of_a_worker_takes_and_ends_no_step_of_the_master(emr):
    """Its controller's token is in a file of root's."""
    cluster = emr.ready(1)
    (master,), (worker,) = emr.instances(cluster, "MASTER"), emr.instances(cluster, "CORE")
    (step,) = emr.api.add_job_flow_steps(JobFlowId=cluster, Steps=[command("a")])["StepIds"]
    assert "step" not in emr.report(worker, "next")
    assert emr.report(master, "next")["step"]["id"] == step
    assert "step" not in emr.report(worker, "next")
    emr.report(worker, "done", step=step, code=0)
    assert emr.step(cluster, step)["Status"]["State"] == "RUNNING"
    emr.report(master, "done", step=step, code=1)
    assert emr.step(cluster, step)["Status"]["State"] == "FAILED"


@pytest.mark.parametrize(
    "report",
    [{"number": "9" * 4000}, {"number": [1]}, {"number": -1}, {"how": ["exit"]}, {"code": "\x1b]0;owned\x07" * 999}],
)
def test_what_a_controller_invents_is_in_no_answer_of_emr(emr, report):
    cluster = emr.ready(1)
    (master,), (worker,) = emr.instances(cluster, "MASTER"), emr.instances(cluster, "CORE")
    (step,) = emr.api.add_job_flow_steps(JobFlowId=cluster, Steps=[command("a")])["StepIds"]
    emr.report(master, "next")
    emr.report(master, "done", step=step, **report)
    emr.report(worker, "failed", **report)
    answers = (emr.describe(cluster), emr.step(cluster, step), emr.api.list_instances(ClusterId=cluster)["Instances"])
    shown = json.dumps(answers, default=str)
    assert "9" * 99 not in shown and "owned" not in shown


@pytest.mark.parametrize("names", [["Hadoop"], ["Livy"], []])
def test_the_master_and_core_instances_install_their_parts_of_yarn_whatever_is_chosen(emr, names):
    site = {"Classification": "yarn-site", "Properties": {"yarn.nodemanager.resource.memory-mb": "2048"}}
    made = emr.run(cores=1, Applications=[{"Name": name} for name in names], Configurations=[site])
    assert [one["Name"] for one in emr.describe(made)["Applications"]] == (names or ["Hadoop"])
    for role, program in (("MASTER", "resource_manager"), ("CORE", "node_manager")):
        (instance,) = emr.instances(made, role)
        script = emr.report(instance, "start")["applications"]
        assert program in script and "<value>2048</value>" in script
        # As on EMR, YARN's nodes have the instances' private DNS names.
        assert f"<name>yarn.nodemanager.hostname</name>\n    <value>{instance['PrivateDnsName']}</value>" in script
