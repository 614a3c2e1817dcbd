"""Clusters of Amazon EMR: what their spec may say, their document, and the script that starts the agent."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from clusters import FACTS, spec
from error_codes import raises_code
from fake_cloud import described, event, noted

from phalanx.aws.model import StackState
from phalanx.cluster.diagnosis import require_living
from phalanx.cluster.why import Evidence, diagnose
from phalanx.emr.instance_groups import InstanceGroups
from phalanx.errors import SpecError
from phalanx.plan import quotas
from phalanx.plan.existing_vpc import INTERNET, ExistingVpc, Subnet
from phalanx.plan.machine_images import Image
from phalanx.plan.mount_targets import MountTarget
from phalanx.plan.plan import Plan, make_plan
from phalanx.plan.plan_text import explain, warnings
from phalanx.spec.spec import ClusterSpec
from phalanx.spec.spec_limits import LONGEST_NODE_TIMEOUT_S
from phalanx.template import LIMIT_BYTES, request, synthesize, uploads, userdata
from phalanx.template.emr import bootstrap_action
from phalanx.template.policy import policy

AMAZON = Image("ami-0123abcd", "al2023-ami-2023.9.0-x86_64", "x86_64", "/dev/xvda", 8)


GROUPS = {"master_group": "sg-01234567", "core_group": "sg-89abcdef"}
A_SUBNET = "subnet-01234567"
SUBNET = Subnet(A_SUBNET, "vpc-1", "us-east-1a", "10.3.0.0/24", 200, INTERNET)
OWN_VPC = ExistingVpc("vpc-1", dns_support=True, dns_hostnames=True, head=SUBNET, workers=SUBNET)
ROLE = ("arn:aws:iam::1:role/Nodes", "AROA1")


def own_document(**emr: str) -> dict[str, Any]:
    """Return the document of a cluster in a subnet of the user's."""
    wanted = emr_spec(network={"head_subnet": SUBNET.subnet_id}, emr={"logs": "s3://b.c/d", **emr})
    facts = replace(FACTS, cloud="emr", vpc=OWN_VPC, node_role=ROLE if "node_role" in emr else ("", ""))
    return json.loads(synthesize(make_plan(wanted, facts)))


def emr_spec(**fields: Any) -> ClusterSpec:
    given = {"cloud": "emr", "type": "m5.xlarge", "ssh_from": "203.0.113.0/24", "emr": {"logs": "s3://bucket/logs/"}}
    return spec(**(given | fields))


def emr_plan(made_of: Image | None = None, **fields: Any) -> Plan:
    return make_plan(emr_spec(**fields), replace(FACTS, cloud="emr", image=made_of))


def emr_document(**fields: Any) -> dict[str, Any]:
    return json.loads(synthesize(emr_plan(**fields)))


def cluster(document: dict[str, Any]) -> dict[str, Any]:
    return document["Resources"]["EmrCluster"]["Properties"]


def refusal(made_of: Image | None = None, **fields: Any) -> str:
    with pytest.raises(SpecError) as raised:
        emr_plan(made_of, **fields)
    return str(raised.value)


class TestSpec:
    @pytest.mark.parametrize(
        ("fields", "said"),
        [
            ({"head": {"type": "m5.xlarge"}}, "head: the master node is of `type`"),
            ({"placement": "cluster"}, "placement: EMR starts no instances in a cluster placement group"),
            ({"efa": "yes"}, "efa: can't be yes"),
            ({"capacity": "cr-0123456789abcdef0"}, "capacity: can't be a reservation"),
            ({"lease_s": 3600}, "lease: EMR ends a cluster with its nodes"),
            ({"idle_s": 3600}, "idle: EMR ends a cluster with its nodes"),
            ({"budget": "$50"}, "budget: EMR ends a cluster with its nodes"),
            ({"mail": "me@example.com"}, "mail: EMR stops no nodes"),
            ({"disk": {"size_gib": 8}}, "disk: size_gib must be from 15 to 100 for EMR, is 8"),
            ({"disk": {"type": "gp2"}}, "disk: type can't be gp2"),
            ({"emr": None}, "emr: is missing: where in S3 do the agent and the logs go?"),
            ({"emr": {"release": "emr-7.9.0"}}, "emr: is missing: where in S3"),
            ({"emr": {"logs": "/var/log"}}, "emr: logs '/var/log' is not a place in S3"),
            ({"emr": {"logs": "s3://b", "release": "7.9"}}, "emr: "),
            ({"emr": {"logs": "s3://bucket", "release": "emr-5.8.0"}}, "Amazon Linux 2 with Python 3.7"),
            ({"emr": {"logs": "s3://bucket", "hue": "yes"}}, "emr: has no key 'hue'"),
            ({"emr": {"logs": "s3://b.c", "master_group": "sg-01234567"}}, "emr: needs master_group and core_group"),
            ({"emr": {"logs": "s3://b.c", **GROUPS}}, "emr: has security groups, which belong to a VPC, without"),
            (
                {"network": {"head_subnet": A_SUBNET, "worker_subnet": "subnet-89abcdef"}},
                "network: has a worker_subnet",
            ),
            ({"cloud": "aws"}, "emr: is for EMR"),
        ],
    )
    def test_what_a_cluster_of_emr_can_t_have_is_refused_at_its_key(self, fields, said):
        assert said in refusal(**fields)

    def test_all_mistakes_are_reported_at_once(self):
        said = refusal(placement="cluster", lease_s=3600, emr={"release": "emr-7.9.0"})
        assert [line.partition(":")[0] for line in said.splitlines()[:3]] == ["placement", "lease", "emr"]

    def test_limits_of_nodes_with_gpus_do_not_apply(self):
        made = make_plan(emr_spec(type="g5.xlarge"), replace(FACTS, cloud="emr", gpus=1, vcpus=4))
        assert (made.limits.lease_s, made.limits.idle_s) == (0, 0)


class TestImage:
    def test_it_is_amazon_linux(self):
        assert emr_plan().image_parameter == "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64"

    def test_another_one_is_refused_by_its_name(self):
        for cloud in ("emr", "local-emr"):
            with raises_code("image-unsuited", "image: ubuntu-24.04 is Ubuntu 24.04", "Amazon Linux only"):
                emr_plan(cloud=cloud, image="ubuntu-24.04")
        mine = replace(AMAZON, name="debian-12-mine")
        with raises_code("image-unsuited", "debian-12-mine"):
            emr_plan(mine, image="ami-0123abcd")

    def test_one_larger_than_the_root_volume_is_refused(self):
        large = replace(AMAZON, size_gib=60)
        with raises_code("disk-size", "disk: size_gib is 50", "ami-0123abcd has 60 GiB"):
            emr_plan(large, image="ami-0123abcd", disk={"size_gib": 50})

    def test_the_root_volume_is_at_least_as_large(self):
        large = emr_plan(replace(AMAZON, size_gib=60), image="ami-0123abcd")
        assert cluster(json.loads(synthesize(large)))["EbsRootVolumeSize"] == 60
        assert cluster(emr_document())["EbsRootVolumeSize"] == 15


class TestDocument:
    def test_emr_makes_the_machines_and_no_group_does(self):
        kinds = {resource["Type"] for resource in emr_document()["Resources"].values()}
        assert "AWS::EMR::Cluster" in kinds
        assert not {kind for kind in kinds if kind.startswith(("AWS::AutoScaling", "AWS::Lambda", "AWS::SNS"))}

    def test_the_groups_are_uniform_and_of_one_subnet(self):
        instances = cluster(emr_document(capacity="spot"))["Instances"]
        assert instances["Ec2SubnetId"] == {"Ref": "PublicSubnet"}
        assert instances["KeepJobFlowAliveWhenNoSteps"] is True
        assert instances["MasterInstanceGroup"]["Market"] == "ON_DEMAND"
        condition, core, none = instances["CoreInstanceGroup"]["Fn::If"]
        assert (condition, core["InstanceCount"], core["Market"]) == ("HasWorkers", {"Ref": "Workers"}, "SPOT")
        assert none == {"Ref": "AWS::NoValue"}

    def test_emr_is_trusted_by_the_name_that_the_partition_knows(self):
        (statement,) = emr_document()["Resources"]["EmrRole"]["Properties"]["AssumeRolePolicyDocument"]["Statement"]
        name = "elasticmapreduce.amazonaws.com"
        assert statement["Principal"]["Service"] == {"Fn::If": ["InChina", f"{name}.cn", name]}

    def test_one_group_of_rules_serves_both_so_that_the_stack_can_be_deleted(self):
        instances = cluster(emr_document())["Instances"]
        assert instances["EmrManagedMasterSecurityGroup"] == instances["EmrManagedSlaveSecurityGroup"]

    def test_what_the_spec_chooses(self):
        wanted = {"logs": "s3://b.c/d", "release": "emr-7.5.0", "applications": ["Spark"], "service_role": "Mine"}
        made = emr_document(emr=wanted, disk={"size_gib": 80, "iops": 6000})
        chosen = ("ReleaseLabel", "LogUri", "ServiceRole", "EbsRootVolumeSize", "EbsRootVolumeIops")
        assert [cluster(made)[key] for key in chosen] == ["emr-7.5.0", "s3://b.c/d/", "Mine", 80, 6000]
        assert cluster(made)["Applications"] == [{"Name": "Spark"}]
        assert "EmrRole" not in made["Resources"]

    def test_no_argument_of_the_bootstrap_action_comes_twice(self):
        """CloudFormation refuses equal ones, and the agent's settings all have names."""
        (action,) = cluster(emr_document())["BootstrapActions"]
        arguments = [json.dumps(one) for one in action["ScriptBootstrapAction"]["Args"]]
        assert len(set(arguments)) == len(arguments)
        assert action["ScriptBootstrapAction"]["Path"] == next(iter(uploads(emr_plan())))

    def test_nodes_change_their_own_cluster_alone(self):
        policies = emr_document()["Resources"]["NodeRole"]["Properties"]["Policies"]
        statements = policies[0]["PolicyDocument"]["Statement"]
        (changes,) = [one for one in statements if "elasticmapreduce:ModifyInstanceGroups" in one["Action"]]
        own = {"elasticmapreduce:ResourceTag/phalanx:cluster": {"Ref": "AWS::StackName"}}
        assert changes["Condition"] == {"StringEquals": own}

    @pytest.mark.parametrize("role", ["NodeRole", "JobRole"])
    def test_nodes_and_jobs_can_not_change_the_agent_that_other_nodes_run_as_root(self, role):
        wanted = {"emr": {"logs": "s3://bucket/logs"}, "data": {"all": "s3://bucket rw"}}
        policies = emr_document(**wanted)["Resources"][role]["Properties"]["Policies"]
        denied = [one for one in policies[0]["PolicyDocument"]["Statement"] if one["Effect"] == "Deny"]
        agents = {"Fn::Sub": "arn:${AWS::Partition}:s3:::bucket/logs/phalanx/*"}
        assert denied == [{"Effect": "Deny", "Action": ["s3:PutObject", "s3:DeleteObject"], "Resource": agents}]
        assert next(iter(uploads(emr_plan(**wanted)))).startswith("s3://bucket/logs/phalanx/")

    def test_yarn_runs_containers_as_who_asks_only_if_jobs_come_through_it(self):
        assert "Configurations" not in cluster(emr_document())
        made = cluster(emr_document(emr={"logs": "s3://bucket/logs", "via_yarn": "yes"}))["Configurations"]
        users = {"yarn.nodemanager.linux-container-executor.nonsecure-mode.limit-users": "false"}
        assert made == [{"Classification": "yarn-site", "ConfigurationProperties": users}]

    def test_the_network_has_the_tag_that_emrs_policy_requires(self):
        document = emr_document()
        for name in ("Vpc", "PublicSubnet", "NodeSecurityGroup", "HeadSecurityGroup"):
            tags = document["Resources"][name]["Properties"]["Tags"]
            assert {"Key": "for-use-with-amazon-emr-managed-policies", "Value": "true"} in tags

    def test_its_outputs_name_the_user_that_emrs_image_has(self):
        shown = emr_document()["Outputs"]["ClusterMasterPublicDNS"]["Description"]
        assert shown == "Log in here: ssh hadoop@…"

    def test_it_fits_into_a_request(self):
        document, sent = request(emr_plan())
        assert len(document.encode()) < LIMIT_BYTES - 5000
        assert sent.items() >= userdata.parameters().items()

    def test_the_policy_of_a_person_covers_it(self):
        allowed = {action for one in policy(emr_document(), "demo")["Statement"] for action in one["Action"]}
        assert {"elasticmapreduce:RunJobFlow", "s3:PutObject"} <= allowed

    def test_it_takes_one_address_because_its_nodes_need_no_gateway(self):
        assert [quota.needed for quota in quotas.of(emr_spec(), 4) if quota.unit == "Elastic IP"] == [1]

    def test_the_plan_warns_of_what_ends_a_shared_directory_on_the_head(self):
        (said,) = (one for one in warnings(emr_plan(storage="head")) if "shared directory" in one)
        assert "when it dies, with which EMR ends the cluster, or taken down" in said
        assert "lease" not in said and "idle" not in said

    def test_the_plan_says_where_the_agent_goes(self):
        text = "\n".join(explain(emr_plan()))
        assert "emr-7.9.0 with Hadoop, Spark; the agent and EMR's logs are in s3://bucket/logs/" in text
        assert "NAT gateway" not in text


class TestOwn:
    def test_in_a_subnet_of_the_user_s_only_an_address_is_made(self):
        made = own_document()
        kinds = [one["Type"] for one in made["Resources"].values() if one["Type"].startswith("AWS::EC2")]
        assert not {"AWS::EC2::VPC", "AWS::EC2::Subnet", "AWS::EC2::Route"} & {*kinds}
        assert "AWS::EC2::EIP" in kinds
        assert cluster(made)["Instances"]["Ec2SubnetId"] == {"Ref": "PublicSubnet"}
        assert made["Parameters"]["PublicSubnet"]["Default"] == SUBNET.subnet_id
        names = {name for one in made["Resources"].values() for name in one.get("DependsOn", [])}
        assert names <= made["Resources"].keys()

    def test_a_second_cluster_on_one_file_system_uses_its_mount_target_or_is_refused(self):
        there = MountTarget("us-east-1a", "vpc-1", ("sg-1",))
        wanted = {"file_system": "fs-01234567", "emr": {"logs": "s3://b.c/d"}}
        facts = replace(FACTS, cloud="emr", mount_targets=(there,))
        within = emr_spec(network={"head_subnet": SUBNET.subnet_id}, **wanted)
        made = json.loads(synthesize(make_plan(within, replace(facts, vpc=OWN_VPC))))["Resources"]
        assert "MountTarget" not in made
        assert made["NfsFromNodes"]["Properties"]["GroupId"] == "sg-1"
        assert "NfsFromNodes" in made["EmrCluster"]["DependsOn"]
        with raises_code("file-system-elsewhere", "fs-01234567", "vpc-1", "a new VPC"):
            make_plan(emr_spec(**wanted), facts)

    def test_managed_groups_of_the_user_s_are_beside_the_stack_s(self):
        instances = cluster(own_document(**GROUPS))["Instances"]
        assert instances["EmrManagedMasterSecurityGroup"] == GROUPS["master_group"]
        assert instances["EmrManagedSlaveSecurityGroup"] == GROUPS["core_group"]
        own = [{"Ref": "HeadSecurityGroup"}, {"Ref": "NodeSecurityGroup"}]
        assert instances["AdditionalMasterSecurityGroups"] == own
        assert instances["AdditionalSlaveSecurityGroups"] == [{"Ref": "NodeSecurityGroup"}]

    def test_a_role_of_the_user_s_gets_a_policy_and_is_what_jobs_and_emr_trust_and_pass(self):
        made = own_document(node_role="Nodes")["Resources"]
        assert "NodeRole" not in made
        assert made["NodePolicy"]["Properties"]["Roles"] == made["NodeProfile"]["Properties"]["Roles"] == ["Nodes"]
        (trusted,) = made["JobRole"]["Properties"]["AssumeRolePolicyDocument"]["Statement"]
        assert trusted["Principal"] == {"AWS": [ROLE[0]]}
        (passed,) = made["EmrRole"]["Properties"]["Policies"][0]["PolicyDocument"]["Statement"]
        assert passed["Resource"] == ROLE[0]
        assert "NodePolicy" in made["EmrCluster"]["DependsOn"]
        (action,) = cluster({"Resources": made})["BootstrapActions"]
        assert f"worker_role={ROLE[1]}" in action["ScriptBootstrapAction"]["Args"]


class TestBootstrapAction:
    def test_emrs_limits_hold_for_the_longest_values(self):
        """An argument has at most 10,280 characters, and an action 60 minutes (docs/aws-behaviour.md 7.14, 7.36)."""
        document = emr_document(boot="b" * 1000)
        (action,) = cluster(document)["BootstrapActions"]
        limits = {name: one.get("MaxLength", 4096) for name, one in document["Parameters"].items()}
        for argument in action["ScriptBootstrapAction"]["Args"]:
            text = json.dumps(argument)
            names = re.findall(r"\$\{([\w:.]+)\}", text)
            # A role's ARN and a queue's URL are the longest that are not a parameter's.
            assert len(text) + sum(limits.get(name, 2048) for name in names) < 10_280, text
        assert len(action["Name"]) <= 256
        assert LONGEST_NODE_TIMEOUT_S < 3600

    def test_its_name_changes_with_its_text(self):
        ((url, text),) = uploads(emr_plan()).items()
        assert url.startswith("s3://bucket/logs/phalanx/agent-") and url.endswith(".sh")
        assert text == bootstrap_action.script()

    def test_the_document_says_to_whoever_has_it_in_the_console_that_the_object_comes_first(self):
        (url,) = uploads(emr_plan())
        said = (
            f"Before you create it from the console, store what `phalanx template --bootstrap-action` prints at {url}"
        )
        assert said in emr_document()["Description"]
        longest = emr_document(emr={"logs": "s3://" + "b" * 63 + "/" + "p" * 400})["Description"]
        assert len(longest.encode()) <= 1024


class FakeApi:
    """A cloud whose stack has a cluster that EMR describes with this status."""

    def __init__(self, status: dict[str, Any]) -> None:
        self.status = status

    def exists(self, *_: str, StackName: str) -> dict[str, Any]:
        return {"Stacks": [described(StackState(StackName, f"arn:{StackName}", "CREATE_IN_PROGRESS"))]}

    def call(self, *_: str, **__: str) -> dict[str, Any]:
        return {"Cluster": {"Id": "j-1", "Status": self.status}}

    def pages(self, _service: str, operation: str, *_: str, **__: str) -> list[dict[str, Any]]:
        made = event(1, "EmrCluster", "CREATE_COMPLETE", "AWS::EMR::Cluster")
        return [noted(made)] if operation == "list_stack_resources" else []


def test_what_emr_has_ended_is_said_in_the_words_of_emr_s_machines():
    why = {"StateChangeReason": {"Message": "The master node was terminated"}}
    running = InstanceGroups(FakeApi({"State": "TERMINATED_WITH_ERRORS", **why})).running("demo")
    assert running is not None and running.ended == "EMR has ended the cluster (The master node was terminated)"
    with raises_code("no-nodes", "demo", "EMR has ended") as refused:
        require_living("demo", running)
    cause = diagnose(Evidence(verdict=running.ended)).cause
    assert cause is not None and "`storage: head`" in cause.advice and "`storage: head`" in refused.value.hint


def test_a_cluster_that_starts_for_more_than_20_minutes_has_a_cause():
    begun = datetime.now(timezone.utc) - timedelta(minutes=25)
    groups = InstanceGroups(FakeApi({"State": "STARTING", "Timeline": {"CreationDateTime": begun}}))
    found = diagnose(Evidence(activities=tuple(groups.activities("demo-head"))))
    assert found.cause is not None and found.cause.name.startswith("EMR starts the cluster for more than 20 minutes")
    assert [one.source for one in found.findings] == ["EMR"]
