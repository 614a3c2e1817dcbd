"""`storage: lustre`: what FSx would refuse, the resources, their price, and what `down` does with the data."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from botocore.exceptions import ClientError
from clusters import FACTS, aws_spec, plan, spec
from error_codes import raises_code
from fake_cloud import READY, FakeAws, event
from test_storage_choices import OWN, VPC, ZONE

from phalanx.aws import usage
from phalanx.cluster.cluster_record import Cluster
from phalanx.cluster.spending import cost
from phalanx.cluster.take_down import TakeDown
from phalanx.cluster.update import refuse_fixed
from phalanx.errors import CloudError, ClusterError, SpecError
from phalanx.plan.lustre_storage import LustreFileSystem
from phalanx.plan.plan import Plan, make_plan
from phalanx.plan.plan_text import explain
from phalanx.plan.quotas import of as quotas_of
from phalanx.spec.own_tags import CLUSTER_TAG
from phalanx.ssh.remote import Completed, Remote
from phalanx.template import egress, fleet, synthesize
from phalanx.template.policy import policy

DATA = {"imagenet": "s3://my-bucket/imagenet", "my-runs": "s3://my-bucket/runs rw", "other": "s3://my-bucket/other"}
LINKED = {"storage": "lustre", "data": DATA, "lustre": {"data": ["imagenet", "my-runs"]}}
THEIRS = LustreFileSystem("AVAILABLE", f"{OWN}.fsx.us-east-1.amazonaws.com", "abcdefgh", VPC.vpc, ("sg-9",))
AWS = replace(FACTS, cloud="aws")


def resources(made: Plan) -> dict[str, Any]:
    return json.loads(synthesize(made))["Resources"]


def on_aws(**fields: Any) -> Plan:
    return make_plan(aws_spec(**fields), AWS)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lustre": {"size_gib": 1000}}, "size_gib must be 1200, 2400 or a multiple of 2400, is 1000; write 1200"),
        ({"lustre": {"size_gib": 3600}}, "is 3600; write 4800"),
        (
            {"lustre": {"throughput": 250}},
            "throughput can't be chosen for the type scratch_2; write type: persistent_2",
        ),
        ({"lustre": {"type": "persistent_2", "throughput": 200}}, "must be 125, 250, 500 or 1000, is 200; write 250"),
        ({"lustre": {"type": "scratch_1"}}, "type must be scratch_2 or persistent_2"),
        ({"lustre": {"data": ["imagenet"]}}, "data names imagenet, and `data` has no such entry"),
        (
            {"data": {"a": "s3://bbb/x", "b": "s3://bbb/x/y"}, "lustre": {"data": ["a", "b"]}},
            "s3://bbb/x/ contains s3://bbb/x/y/; FSx links a prefix once",
        ),
        ({"file_system": OWN, "lustre": {"size_gib": 2400}}, "lustre: is for a new file system"),
        ({"storage": "efs", "lustre": {"size_gib": 2400}}, "lustre: is for FSx for Lustre; write `storage: lustre`"),
        ({"throughput": "elastic"}, "throughput: is for EFS, and storage is lustre; write it in `lustre`"),
        ({"keep": "yes"}, "keep: can't be yes: the Lustre file system is in the network that `down` deletes"),
        ({"keep": "no", "file_system": OWN}, f"keep: can't be no: `down` never deletes {OWN}"),
        ({"cloud": "local-emr"}, "storage: can't be lustre with EMR"),
        (
            {"down_after_s": 7200},
            "down_after: can't be combined with `storage: lustre`, whose file system keeps the network",
        ),
    ],
)
def test_what_fsx_or_down_would_refuse_is_refused_with_the_nearest_that_works(fields, message):
    with pytest.raises(SpecError) as refused:
        spec(**{"storage": "lustre", **fields})
    assert message in str(refused.value)


def test_prefixes_beside_each_other_are_linked():
    beside = {"a": "s3://bbb/x", "b": "s3://bbb/xy", "c": "s3://ccc/x/y"}
    assert (
        len(
            [
                one
                for one in resources(plan(storage="lustre", data=beside, lustre={"data": list(beside)}))
                if one.startswith("Link")
            ]
        )
        == 3
    )


def test_the_file_system_has_its_rules_before_fsx_looks_for_them_and_is_retained():
    made = resources(plan(storage="lustre"))
    file_system = made["FileSystem"]
    assert file_system["Properties"]["FileSystemTypeVersion"] == "2.15"
    assert file_system["Properties"]["LustreConfiguration"] == {"DeploymentType": "SCRATCH_2"}
    assert file_system["Properties"]["StorageCapacity"] == 1200
    assert file_system["DeletionPolicy"] == "RetainExceptOnCreate"
    assert file_system["DependsOn"] == ["Servers988", "Servers1018"]
    own = {"Ref": "StorageSecurityGroup"}
    ports = [
        (made[name]["Properties"]["FromPort"], made[name]["Properties"]["ToPort"]) for name in file_system["DependsOn"]
    ]
    assert ports == [(988, 988), (1018, 1023)]
    assert {json.dumps(made[name]["Properties"]["SourceSecurityGroupId"]) for name in file_system["DependsOn"]} == {
        json.dumps(own)
    }
    group = made["StorageSecurityGroup"]["Properties"]
    nodes = {"Ref": "NodeSecurityGroup"}
    assert [(one["FromPort"], one["SourceSecurityGroupId"]) for one in group["SecurityGroupIngress"]] == [
        (988, nodes),
        (1018, nodes),
    ]
    assert (
        "MountTarget" not in made and "FileSystemId" not in json.loads(synthesize(plan(storage="lustre")))["Parameters"]
    )


def test_a_persistent_one_has_a_throughput():
    made = resources(plan(storage="lustre", lustre={"type": "PERSISTENT_2".lower(), "size_gib": 4800}))["FileSystem"]
    speed = made["Properties"]["LustreConfiguration"]
    assert speed == {"DeploymentType": "PERSISTENT_2", "PerUnitStorageThroughput": 125}


def test_links_import_and_only_writable_ones_export_and_nodes_wait_for_them():
    made = plan(**LINKED)
    document = resources(made)
    read, write = document["Linkimagenet"]["Properties"], document["LinkmyDruns"]["Properties"]
    assert (read["FileSystemPath"], read["DataRepositoryPath"]) == ("/data/imagenet", "s3://my-bucket/imagenet/")
    assert read["BatchImportMetaDataOnCreate"] is True
    assert (list(read["S3"]), sorted(write["S3"])) == (["AutoImportPolicy"], ["AutoExportPolicy", "AutoImportPolicy"])
    assert {"Linkimagenet", "LinkmyDruns", "NodesFromServers988"} <= {*document["WorkersGroup"]["DependsOn"]}
    config = fleet.config("worker", made)
    assert config["linked"] == "imagenet,my-runs+"
    assert config["file_system"].data == {"Fn::Sub": "${FileSystem.DNSName}@tcp:/${FileSystem.LustreMountName}"}
    assert "linked" not in fleet.config("worker", plan())


def test_one_of_the_users_is_mounted_by_its_own_name_and_lets_the_nodes_in():
    facts = replace(FACTS, zones=(ZONE,), vpc=VPC, lustre=THEIRS)
    network = {"head_subnet": VPC.head.subnet_id, "worker_subnet": VPC.workers.subnet_id}
    made = plan(facts, network=network, file_system=OWN, nodes=2, min=1, storage="lustre")
    document = json.loads(synthesize(made))
    assert not {"FileSystem", "StorageSecurityGroup"} & document["Resources"].keys()
    assert fleet.config("head", made)["file_system"] == f"{OWN}.fsx.us-east-1.amazonaws.com@tcp:/abcdefgh"
    rules = [document["Resources"][f"ServersFromNodes{port}"]["Properties"]["GroupId"] for port in (988, 1018)]
    assert rules == ["sg-9", "sg-9"]
    assert document["Outputs"]["SharedFileSystem"]["Value"] == OWN
    assert any(f"your FSx for Lustre file system {OWN}" in line for line in explain(made))


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (None, f"only FSx knows the mount name of {OWN}"),
        (replace(THEIRS, vpc="vpc-1"), f"{OWN} is in vpc-1, and the nodes are in a new VPC"),
        (replace(THEIRS, vpc="", state="CREATING"), f"{OWN} is CREATING"),
    ],
)
def test_one_of_the_users_that_can_t_be_mounted_is_refused(found, message):
    with pytest.raises(SpecError, match=message):
        plan(replace(FACTS, lustre=found), file_system=OWN, storage="lustre")


def test_the_plan_has_its_price_its_speed_and_its_links():
    lines = "\n".join(explain(on_aws(**LINKED)))
    assert "an FSx for Lustre file system of 1200 GiB (scratch_2, 240 MB/s for all nodes together)" in lines
    assert "data/imagenet is s3://my-bucket/imagenet/; data/my-runs is s3://my-bucket/runs/, both ways" in lines
    assert "Lustre at $0.23 an hour until `down`" in lines and "EFS" not in lines
    without, with_it = on_aws(), on_aws(storage="lustre")
    assert with_it.cost_usd_per_hour == pytest.approx(without.cost_usd_per_hour + 1200 * 0.140 / 730, abs=1e-4)
    dear = on_aws(storage="lustre", lustre={"type": "persistent_2", "size_gib": 2400, "throughput": 1000})
    assert dear.cost_usd_per_hour == pytest.approx(without.cost_usd_per_hour + 2400 * 0.600 / 730, abs=1e-4)


@pytest.mark.parametrize(
    ("image", "warned"),
    [("ubuntu-22.04", True), ("dlami-base", False), ("amazon-linux-2023", False), ("/my/image", True)],
)
def test_a_client_that_may_not_exist_for_the_image_s_kernel_is_warned_of(image, warned):
    lines = [line for line in explain(on_aws(storage="lustre", image=image)) if "Lustre's client" in line]
    assert bool(lines) == warned


def test_nodes_that_reach_no_mirror_need_an_image_with_the_client():
    private = {"storage": "lustre", "network": {"access": "private"}, "ssh_from": ""}
    with raises_code("image-lacks", "dlami-base-amazon-linux-2023"):
        on_aws(**private, image="dlami-base-amazon-linux-2023")
    assert "Lustre at $0.23 an hour" in "\n".join(explain(on_aws(**private, image="dlami-base")))


def test_its_ports_and_the_client_s_repository_are_listed_for_closed_networks():
    made = on_aws(storage="lustre")
    rows = {(row.host, row.port) for row in egress.of(made, "amazonaws.com")}
    assert {port for host, port in rows if host == made.network.private} == {988, *range(1018, 1024)}
    assert ("fsx-lustre-client-repo.s3.amazonaws.com", 443) in rows


class FakeFsx:
    """FSx with three file systems, and no quotas of the account's own."""

    KINDS = (("SCRATCH_1", 3600, "other"), ("SCRATCH_2", 1200, "demo"), ("PERSISTENT_2", 2400, "other"))

    def pages(self, service, operation, key):
        assert (service, operation, key) == ("fsx", "describe_file_systems", "FileSystems")
        for kind, size, cluster in self.KINDS:
            tags = [{"Key": "phalanx:cluster", "Value": cluster}]
            yield {"StorageCapacity": size, "LustreConfiguration": {"DeploymentType": kind}, "Tags": tags}
        yield {"StorageCapacity": 32, "WindowsConfiguration": {}}

    def call(self, service, operation, **arguments):
        return {"Quota": {"Value": 5000.0}}


@pytest.mark.parametrize(
    ("kind", "code", "used"), [("scratch_2", "L-AD2FC696", 3600), ("persistent_2", "L-8F1B9C74", 2400)]
)
def test_what_others_use_of_the_quota_counts(kind, code, used):
    wanted = [one for one in quotas_of(aws_spec(storage="lustre", lustre={"type": kind}), 2) if one.service == "fsx"]
    (asked,), unknown = usage.ask(FakeFsx(), "demo", wanted)
    assert (asked.code, asked.needed, asked.used, asked.limit, unknown) == (code, 1200, used, 5000, "")
    if used == 3600:
        assert asked.free == 1400
        with raises_code("quota", "lustre: ", "2400 GiB", "Lustre Scratch storage"):
            make_plan(aws_spec(storage="lustre"), replace(AWS, quotas=(replace(asked, needed=2400, least=2400),)))


def test_the_user_s_policy_has_fsx_s_calls_and_its_roles_and_the_linked_buckets_alone():
    statements = {one["Sid"]: one for one in policy(json.loads(synthesize(plan(**LINKED))), "demo")["Statement"]}
    actions = {action for one in statements.values() for action in one["Action"]}
    assert {"fsx:CreateFileSystem", "fsx:CreateDataRepositoryAssociation", "iam:CreateServiceLinkedRole"} <= actions
    assert statements["LinkedBuckets"]["Resource"] == ["arn:*:s3:::my-bucket"]
    assert "fsx:DeleteFileSystem" in statements["TaggedOnly"]["Action"]
    assert "RolesOfFsx" not in {one["Sid"] for one in policy(json.loads(synthesize(plan())), "demo")["Statement"]}


@pytest.mark.parametrize(
    ("before", "now", "reason"),
    [
        (None, {"size_gib": 2400}, ""),
        ({"type": "persistent_2"}, {"type": "persistent_2", "size_gib": 4800, "throughput": 500}, ""),
        ({"size_gib": 2400}, None, "can grow, and can't become smaller"),
        (None, {"type": "persistent_2"}, "the type of a Lustre file system can't change"),
        ({"data": ["a"]}, {"data": ["b"]}, "its links to S3 can't change"),
    ],
)
def test_a_file_system_grows_and_gets_another_speed_and_is_what_it_was_otherwise(before, now, reason):
    state = FakeAws()
    found = state.state(state.put("demo", "CREATE_COMPLETE"))
    if not reason:
        refuse_fixed(found, {"lustre": (before, now)})
        return
    with pytest.raises(ClusterError, match=f"other settings: lustre: .*{reason}"):
        refuse_fixed(found, {"lustre": (before, now)})


class LustreCloud(FakeAws):
    """A cloud whose stack has a Lustre file system, that FSx refuses to delete at first, and then takes a while."""

    def __init__(self, listing: bytes, monkeypatch: Any, state: Any, busy: int = 0) -> None:
        monkeypatch.setenv("PHALANX_STATE_DIR", str(state))
        super().__init__(name="aws")
        self.calls: list[str] = []
        self.busy = busy
        made = event(7, "FileSystem", "CREATE_COMPLETE", "AWS::FSx::FileSystem")
        stack_id = self.put("demo", "CREATE_COMPLETE", script=[*READY[:5], made, READY[5]])
        self.stacks[stack_id].state.outputs.update(SharedFileSystem="physical-FileSystem", Lustre="x@tcp:/y")
        record = Cluster("demo", "aws", "us-east-1", stack_id, "54.0.0.1", "/efs", spec={}).save()
        record.ssh_config.touch()
        monkeypatch.setattr(Remote, "run", lambda *_, **__: Completed(0, listing, b""))

    def call(self, service, operation, **arguments):
        if service != "fsx":
            return super().call(service, operation, **arguments)
        return self.describe_lustre() if operation == "describe_file_systems" else self.delete_lustre(**arguments)

    def describe_lustre(self):
        tags = [{"Key": CLUSTER_TAG, "Value": "demo"}]
        made = {"DeploymentType": "SCRATCH_2"}
        one = {"FileSystemId": "physical-FileSystem", "Lifecycle": "AVAILABLE", "StorageCapacity": 1200}
        gone = self.calls[-1:] == ["delete stack"]
        return {"FileSystems": [] if gone else [{**one, "LustreConfiguration": made, "Tags": tags}]}

    def delete_lustre(self, FileSystemId):
        self.calls.append(f"delete {FileSystemId}")
        self.busy -= 1
        if self.busy >= 0:
            refused = ClientError({"Error": {"Code": "BadRequest", "Message": "a task runs"}}, "DeleteFileSystem")
            raise CloudError("a task runs") from refused
        return {}

    def delete_stack(self, StackName):
        self.calls.append("delete stack")
        super().delete_stack(StackName)


def test_down_has_fsx_delete_it_before_the_network_that_it_is_in(monkeypatch, tmp_path):
    cloud = LustreCloud(b"", monkeypatch, tmp_path, busy=2)
    list(TakeDown(cloud, "demo").steps())
    assert cloud.calls == ["delete physical-FileSystem"] * 3 + ["delete stack"]
    assert cloud.deleted_file_systems == []


@pytest.mark.parametrize(("writable", "asked"), [(False, False), (True, True)])
def test_what_is_in_s3_anyway_is_no_data_to_ask_about(monkeypatch, tmp_path, writable, asked):
    data = {"pets": "s3://my-bucket/pets" + " rw" * writable}
    looked: list[str] = []
    cloud = LustreCloud(b"", monkeypatch, tmp_path)
    replace(Cluster.load("demo"), spec={"data": data, "lustre": {"data": ["pets"]}}).save()
    monkeypatch.setattr(Remote, "run", lambda _, look, **__: looked.append(look) or Completed(0, b"", b""))
    TakeDown(cloud, "demo")
    assert ("./data/pets/*" in looked[0]) != asked


@pytest.mark.parametrize("keep", [None, "yes"])
def test_down_deletes_nothing_if_the_data_shall_stay(monkeypatch, tmp_path, keep):
    cloud = LustreCloud(b"./data/a\n", monkeypatch, tmp_path)
    with raises_code("data-would-be-lost", "demo", "physical-FileSystem"):
        TakeDown(cloud, "demo", keep=keep)
    assert cloud.calls == []


def test_its_price_is_part_of_what_a_stopped_cluster_costs(monkeypatch, tmp_path):
    cloud = LustreCloud(b"", monkeypatch, tmp_path)
    found = cost(cloud, cloud.state("demo"), None)
    hourly = 0.14 * 1200 / 730
    assert found.lustre_usd_per_hour == pytest.approx(hourly)
    assert found.idle_usd_per_hour == pytest.approx(hourly + 0.045 + 2 * 0.005, abs=1e-4)
