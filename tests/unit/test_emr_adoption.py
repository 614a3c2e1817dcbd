"""What keeps an EMR cluster from being adopted, and what the document of an adoption contains."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError
from click.testing import CliRunner
from error_codes import raises_code
from fake_cloud import STACK, FakeAws, event
from plans import ADOPTED, FOUND
from rosters import a_node

from phalanx import connection
from phalanx.cli.adopt import command
from phalanx.cli.progress import Watch
from phalanx.cluster.cluster_record import Cluster
from phalanx.emr import adoption, look_up
from phalanx.emr.adoption import Nodes
from phalanx.emr.resizing import CoreGroup
from phalanx.errors import CloudError, ClusterError
from phalanx.ssh.remote import Completed
from phalanx.template.emr import adopted


class FakeEmr:
    """EMR with one cluster, as DescribeCluster and ListInstanceGroups describe it."""

    region = "us-east-1"

    def __init__(self, state: str = "WAITING", masters: int = 1, **more: Any) -> None:
        status = {"State": state, "StateChangeReason": {"Message": "as it is"}}
        of_ec2 = {"Ec2KeyName": "mine", "Ec2SubnetId": "subnet-1", "IamInstanceProfile": "EMR_EC2_DefaultRole"}
        self.cluster = {"Id": "j-1", "Status": status, "ReleaseLabel": "emr-7.9.0", "Ec2InstanceAttributes": of_ec2}
        self.cluster |= {"InstanceCollectionType": "INSTANCE_GROUP", "Tags": [], **more}
        self.groups = [{"InstanceGroupType": "MASTER", "RequestedInstanceCount": masters}]

    def call(self, service: str, operation: str, **arguments: Any) -> dict[str, Any]:
        assert (service, operation) == ("emr", "describe_cluster")
        if arguments["ClusterId"] == self.cluster["Id"]:
            return {"Cluster": self.cluster}
        error = {"Code": "InvalidRequestException", "Message": "Cluster id 'j-0' is not valid."}
        raise CloudError("refused") from ClientError({"Error": error}, "DescribeCluster")

    def pages(self, _service: str, operation: str, _key: str, **_: Any) -> Iterator[Any]:
        assert operation == "list_instance_groups"
        yield from self.groups


def refused(cluster_id: str = "j-1", **given: Any) -> str:
    with pytest.raises(ClusterError) as error:
        look_up.find(FakeEmr(**given), cluster_id)
    return str(error.value)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"cluster_id": "j-0"}, "there is no EMR cluster j-0 in us-east-1"),
        ({"state": "TERMINATED_WITH_ERRORS"}, "EMR cluster j-1 is TERMINATED_WITH_ERRORS: as it is"),
        ({"state": "TERMINATING"}, "EMR cluster j-1 is TERMINATING"),
        ({"state": "BOOTSTRAPPING"}, "EMR cluster j-1 is BOOTSTRAPPING"),
        ({"InstanceCollectionType": "INSTANCE_FLEET"}, "has instance fleets: only uniform instance groups"),
        (
            {"ReleaseLabel": "emr-5.8.0"},
            "has the release emr-5.8.0, whose Python is older than 3.9: 7.0.0 is the first",
        ),
        ({"Ec2InstanceAttributes": {}}, "was made without an EC2 key pair"),
        ({"Tags": [{"Key": "phalanx:cluster", "Value": "demo"}]}, "`phalanx adopt demo --cloud emr` takes it over"),
        ({"masters": 3}, "has 3 master nodes"),
    ],
)
def test_a_cluster_that_can_not_be_adopted_is_refused_with_the_reason(given, said):
    assert said in refused(**given)


def test_all_reasons_are_given_at_once():
    said = refused(InstanceCollectionType="INSTANCE_FLEET", ReleaseLabel="emr-6.15.0")
    assert said.count("EMR cluster j-1 has") == 2


def test_the_document_makes_no_machine_and_fits_into_a_request():
    document, parameters = adopted.request(ADOPTED)
    kinds = {one["Type"] for one in json.loads(document)["Resources"].values()}
    assert not {kind for kind in kinds if kind.startswith(("AWS::EC2", "AWS::EMR", "AWS::EFS", "AWS::AutoScaling"))}
    assert len(document.encode()) <= 51_200
    assert parameters.keys() == json.loads(document)["Parameters"].keys()


def test_the_policy_is_on_the_nodes_role_under_the_cluster_s_name_and_changes_no_group():
    resources = json.loads(adopted.request(ADOPTED)[0])["Resources"]
    policy = resources["NodePolicy"]["Properties"]
    assert (policy["PolicyName"], policy["Roles"]) == ("phalanx-demo", [{"Ref": "NodeRole"}])
    actions = {action for one in policy["PolicyDocument"]["Statement"] for action in one["Action"]}
    assert {one for one in actions if one.startswith("elasticmapreduce")} == {
        "elasticmapreduce:ListInstanceGroups",
        "elasticmapreduce:ListInstances",
    }


def test_a_master_of_another_type_than_the_core_nodes_runs_no_processes_of_jobs():
    made = {"HeadQueue": "q", "RosterTable": "t", "LogGroup": "l", adopted.HANDLE: "https://handle"}
    master, core = (adopted.boot(ADOPTED, one, "id", "d", made, "job").decode() for one in ADOPTED.cluster.instances)
    assert "slots=-1" in master
    assert "slots=0" in core
    assert "gpus=g5.xlarge=1" in core


@pytest.mark.parametrize("path", ["efs", "/", "/home", "/etc/x", "/a b"])
def test_a_directory_of_the_system_can_not_be_shared(path):
    refused = CliRunner().invoke(command, ["--emr", "j-1", "--yes", "--shared", path])
    assert refused.exit_code == 2 and "--shared" in refused.output


def test_the_answer_of_a_node_may_be_any_bytes(tmp_path, monkeypatch):
    monkeypatch.setenv("PHALANX_STATE_DIR", str(tmp_path))
    node = SimpleNamespace(connect=lambda: None, run=lambda *_, **__: Completed(0, b"sudo\n\xff\n", b""))
    monkeypatch.setattr(Nodes, "remote", lambda *_: node)
    found = Nodes(FOUND, "mine", (), None).look("/efs")
    assert [sorted(marks) for marks in found.values()] == [["sudo", "\ufffd"]] * 2


def judged(monkeypatch: pytest.MonkeyPatch, *marks: str) -> adoption.EmrAdoption:
    """Look at nodes that have these marks besides those of every node."""
    monkeypatch.setattr(adoption, "Nodes", FakeNodes)
    monkeypatch.setattr(FakeNodes, "agent", frozenset(marks))
    return adoption.EmrAdoption(FakeAws(), "amazonaws.com", FOUND, adoption.Wanted("mine"))


@pytest.mark.parametrize(
    ("mark", "said"), [("user", "i-2 has a user or group phalanx of its own"), ("uid", "i-1 uses the uid or gid 2000")]
)
def test_a_node_whose_user_phalanx_is_not_ours_is_not_adopted(tmp_path, monkeypatch, mark, said):
    monkeypatch.setenv("PHALANX_STATE_DIR", str(tmp_path))
    with pytest.raises(ClusterError, match=said):
        judged(monkeypatch, mark)
    # An adoption whose stack is gone has left it, and the next one removes it first.
    judged(monkeypatch, mark, "stack/earlier/0123")


@pytest.mark.parametrize(
    ("marks", "mode"), [(("shared", "closed 755"), "755"), (("shared",), ""), (("closed ; id",), "")]
)
def test_a_directory_where_jobs_can_not_write_is_shown_with_its_mode(tmp_path, monkeypatch, marks, mode):
    monkeypatch.setenv("PHALANX_STATE_DIR", str(tmp_path))
    found = judged(monkeypatch, *marks)
    assert found.closed == mode


def test_what_fails_before_the_agent_is_sent_undoes_the_adoption_at_once(tmp_path, monkeypatch):
    monkeypatch.setenv("PHALANX_STATE_DIR", str(tmp_path))
    monkeypatch.setattr(adoption.keys, "make", lambda _: "ssh-ed25519 AAAA me")
    monkeypatch.setattr(adoption.give_back, "release_node", lambda *_: None)
    made = judged(monkeypatch)
    cloud = made.cloud
    assert isinstance(cloud, FakeAws)
    cloud.script = [
        event(1, "mine", "CREATE_IN_PROGRESS", STACK),
        event(2, adopted.CONDITION, "CREATE_IN_PROGRESS", "AWS::CloudFormation::WaitCondition"),
    ]

    def refuse(**_: str) -> None:
        cloud.list_stack_resources = lambda **_: {}  # type: ignore[method-assign]
        raise CloudError("throttled")

    cloud.list_stack_resources = refuse  # type: ignore[method-assign]
    with pytest.raises(CloudError, match="throttled"):
        list(made.steps())
    assert cloud.state("mine") is None


class FakeNodes:
    """Nodes that can be adopted, and take every command; `agent` is that of a stack, if they have one."""

    agent: frozenset[str] = frozenset()

    def __init__(self, *_: Any) -> None:
        self.remote = self.boot = lambda _: None

    def look(self, _shared: str) -> dict[Any, set[str]]:
        return {one: {"sudo", "python", *self.agent} for one in FOUND.instances}

    def close(self) -> None:
        pass


def test_an_adoption_that_is_interrupted_is_undone(tmp_path, monkeypatch):
    monkeypatch.setenv("PHALANX_STATE_DIR", str(tmp_path))
    cloud, released = FakeAws(), []
    monkeypatch.setattr(connection, "connect", lambda *_: cloud)
    monkeypatch.setattr(look_up, "find", lambda *_: FOUND)
    monkeypatch.setattr(adoption, "Nodes", FakeNodes)
    monkeypatch.setattr(adoption.keys, "make", lambda _: "ssh-ed25519 AAAA me")
    monkeypatch.setattr(adoption.give_back, "release_node", lambda _, name: released.append(name))
    interrupts = iter([KeyboardInterrupt()])

    def show(*_: object) -> None:
        for one in interrupts:
            raise one

    monkeypatch.setattr(Watch, "_show", show)
    ended = CliRunner().invoke(command, ["mine", "--emr", "j-1", "--yes"])
    assert "interrupted; what was added is removed again" in ended.output
    assert released == ["i-2", "i-1"] and cloud.state("mine") is None


def test_an_agent_that_no_stack_has_any_more_is_removed_first_and_any_other_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PHALANX_STATE_DIR", str(tmp_path))
    cloud, released = FakeAws(), []
    monkeypatch.setattr(adoption, "Nodes", FakeNodes)
    monkeypatch.setattr(FakeNodes, "agent", frozenset({"stack/earlier/0123"}))
    monkeypatch.setattr(adoption.give_back, "release_node", lambda _, name: released.append(name) or name)
    found = adoption.EmrAdoption(cloud, "amazonaws.com", FOUND, adoption.Wanted("mine"))
    steps = iter(found.steps())
    assert [next(steps), next(steps)] == released == ["i-1", "i-2"]
    cloud.put("earlier", "CREATE_COMPLETE")
    with raises_code("unsuited-emr-cluster", "i-1 is a node", "cluster earlier", "i-2 is a node"):
        adoption.EmrAdoption(cloud, "amazonaws.com", FOUND, adoption.Wanted("mine"))


class FakeGroups:
    """EMR with the groups of a cluster, one reading after another; `changes` are the requests to change them."""

    region, poll_interval_s = "us-east-1", 0.0

    def __init__(self, *readings: dict[str, Any]) -> None:
        self.readings, self.changes = list(readings), []

    def pages(self, *_: str, **__: str) -> list[dict[str, Any]]:
        found = self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]
        core = {"Id": "ig-1", "InstanceGroupType": "CORE", "Status": {"State": "RUNNING"}, **found}
        return [{"InstanceGroupType": "MASTER"}, *([core] if found else [])]

    def call(self, _service: str, operation: str, **given: Any) -> dict[str, Any]:
        assert operation == "modify_instance_groups"
        self.changes += given["InstanceGroups"]
        return {}


def core_group(*readings: dict[str, Any]) -> tuple[Any, FakeGroups]:
    cloud = FakeGroups(*readings)
    return CoreGroup(cloud, Cluster("mine", "emr", "us-east-1", spec={"adopted": "j-1"})), cloud


def test_nodes_that_leave_an_adopted_cluster_are_ended_by_their_ids():
    group, cloud = core_group({"RequestedInstanceCount": 2})
    assert list(group.resize(2, [a_node(3)], [a_node(number) for number in (1, 2, 3)])) == []
    assert cloud.changes == [{"InstanceGroupId": "ig-1", "EC2InstanceIdsToTerminate": [a_node(3).instance_id]}]


def test_a_core_group_that_emr_can_not_fill_is_named_with_the_reason():
    given_up = {"State": "SUSPENDED", "StateChangeReason": {"Message": "no capacity"}}
    counts = {"RequestedInstanceCount": 1, "RunningInstanceCount": 1}
    group, cloud = core_group(counts, counts, counts, counts, {**counts, "Status": given_up})
    with raises_code("not-scaled", "1 of 2 core nodes", "j-1: no capacity"):
        list(group.resize(3, [], [a_node(1), a_node(2)]))
    assert cloud.changes == [{"InstanceGroupId": "ig-1", "InstanceCount": 2}]


def test_a_cluster_of_a_master_alone_has_no_size_to_change():
    with raises_code("no-core-group", "j-1"):
        core_group({})


def test_a_master_without_a_public_address_is_adopted_from_where_it_can_be_reached(tmp_path, monkeypatch):
    monkeypatch.setenv("PHALANX_STATE_DIR", str(tmp_path))

    def refuse() -> None:
        raise ClusterError("no answer")

    monkeypatch.setattr(Nodes, "remote", lambda *_: SimpleNamespace(connect=refuse))
    private = replace(FOUND, master_address=FOUND.master.address)
    with raises_code("no-login", "10.0.0.1: no answer") as error:
        Nodes(private, "mine", (), None).look("/efs")
    assert "a machine that reaches" in error.value.hint
