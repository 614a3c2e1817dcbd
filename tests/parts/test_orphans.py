"""Clusters without a stack are found by what is left of them, and nothing of somebody else is taken for one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from types import SimpleNamespace
from typing import Any

import pytest
from aws_here import AwsHere
from botocore.awsrequest import AWSResponse, HeadersDict
from botocore.exceptions import ClientError
from error_codes import raises_code
from fleet_fakes import REGION, forget_resources, name, until
from leftovers import (
    ACCOUNT,
    DAY_S,
    TAG,
    file_system,
    function,
    group_by,
    launch_template,
    log_group,
    queue,
    removal_role,
    rule,
    table,
    topic,
)
from moto.efs.models import efs_backends
from stack_fakes import Stacks, stacks

from localcloud.api.tag_index import NEW_LATE_S
from localcloud.storage import file_systems
from localcloud.weather.forecast import Forecast
from phalanx.aws import tags
from phalanx.aws.aws import Aws
from phalanx.aws.inventory import orphans, remains
from phalanx.aws.refusals import translate

STACK_TAG = "aws:cloudformation:stack-name"


@pytest.fixture(scope="module")
def running(tmp_path_factory) -> Iterator[Stacks]:
    # What other tests in this process have left, with the tag of a cluster, would be orphans.
    forget_resources(ACCOUNT)
    with stacks(tmp_path_factory.mktemp("state")) as made:
        yield made


@pytest.fixture
def aws(running) -> AwsHere:
    return AwsHere(running.client)


@pytest.fixture
def without_index(running) -> AwsHere:
    """AWS for a user who may not ask the index of tags."""
    return Refusing(running.client, "get_resources")


@pytest.fixture
def late(running) -> Iterator[Stacks]:
    """Let the index of tags be late."""
    running.context.weather.change(Forecast(7, ("tag-index",)))
    yield running
    running.context.weather.change(None)


EVERYTHING = (
    *(queue, table, topic, log_group, launch_template, group_by("{}-head", [TAG])),
    *(removal_role, function, rule, file_system),
)


@pytest.mark.parametrize("may_ask", [True, False], ids=["index", "no right"])
@pytest.mark.parametrize("plant", EVERYTHING)
def test_clusters_without_a_stack_are_found_whatever_is_left(running, plant, may_ask: bool):
    aws = AwsHere(running.client) if may_ask else Refusing(running.client, "get_resources")
    cluster = name("orphan")
    remove = plant(aws, cluster)
    try:
        (found,) = [one for one in orphans.find(aws) if one.cluster == cluster]
        assert found.stack == "" and len(found.lines) == 1
    finally:
        remove()
    until(lambda: cluster not in [one.cluster for one in orphans.find(aws)], f"the end of {cluster}")


@pytest.mark.parametrize("plant", [queue, table, topic, log_group, rule])
def test_without_the_index_names_alone_tell_the_cluster(without_index: AwsHere, plant):
    cluster = name("untagged")
    remove = plant(without_index, cluster, tags={})
    try:
        assert cluster in [one.cluster for one in orphans.find(without_index)]
    finally:
        remove()


def test_what_a_stack_from_the_console_left_is_found_by_the_tags_of_cloudformation(aws: AwsHere, running: Stacks):
    kept = {"Type": "AWS::SQS::Queue", "DeletionPolicy": "Retain"}
    stack = running.made({"HeadQueue": kept, "Other": kept})
    cluster = running.describe(stack)["StackName"]
    queues = [running.physical(stack, one) for one in ("HeadQueue", "Other")]
    running.deleted(stack)
    try:
        (found,) = [one for one in orphans.find(aws) if one.cluster == cluster]
        assert found.lines == (f"queue {queues[0].rpartition('/')[2]}",)
    finally:
        for url in queues:
            aws.call("sqs", "delete_queue", QueueUrl=url)


def test_a_stack_that_failed_and_left_nothing_else_is_found_by_the_index(aws: AwsHere, running: Stacks):
    wrong = {"Type": "AWS::EC2::Subnet", "Properties": {"VpcId": "vpc-0", "CidrBlock": "10.0.0.0/24"}}
    cluster = name("failed")
    stack = running.create({"Wrong": wrong}, StackName=cluster, Tags=[{**TAG, "Value": cluster}])
    assert running.settled(stack) == "ROLLBACK_COMPLETE"
    assert [one for one in orphans.find(aws) if one.cluster == cluster] == [
        orphans.Orphans(cluster, "ROLLBACK_COMPLETE", ())
    ]
    running.deleted(stack)
    assert cluster not in [one.cluster for one in orphans.find(aws)]


def test_a_file_system_that_down_kept_is_no_reason_to_look_for_more(aws: AwsHere):
    cluster = name("kept")
    remove = file_system(aws, cluster)
    try:
        assert cluster not in orphans.clusters(aws)
    finally:
        remove()


def test_what_the_index_does_not_show_yet_is_not_clean_for_down(aws: AwsHere, late: Stacks):
    """`reap` finds it once the index does; the proof of `down` asks the services."""
    cluster = name("late")
    remove = queue(aws, cluster)
    try:
        assert remains.find(aws, cluster, []) == [f"queue {cluster}-HeadQueue-0123456789ab"]
        assert cluster not in [one.cluster for one in orphans.find(aws)]
        late.clock.advance(NEW_LATE_S[1])
        assert cluster in [one.cluster for one in orphans.find(aws)]
    finally:
        remove()


@pytest.mark.parametrize("plant", [launch_template, group_by("{}-head", [TAG]), removal_role])
def test_machines_and_what_the_index_lacks_are_found_however_late_it_is(aws: AwsHere, late: Stacks, plant):
    cluster = name("costs")
    remove = plant(aws, cluster)
    try:
        assert cluster in [one.cluster for one in orphans.find(aws)]
    finally:
        remove()


def test_what_the_index_still_shows_and_its_service_does_not_is_no_orphan(aws: AwsHere, late: Stacks):
    cluster = name("ghost")
    remove = queue(aws, cluster)
    orphans.clusters(aws)
    late.clock.advance(NEW_LATE_S[1])
    assert cluster in [one.cluster for one in orphans.find(aws)]
    remove()
    assert cluster in orphans.clusters(aws), "the index shows it"
    assert cluster not in [one.cluster for one in orphans.find(aws)]


def test_the_index_is_read_to_its_last_page(aws: AwsHere, running: Stacks):
    api, clusters = running.client("sqs"), {name("many") for _ in range(150)}
    made = [api.create_queue(QueueName=f"q-{one}", tags={TAG["Key"]: one})["QueueUrl"] for one in clusters]
    try:
        assert clusters <= orphans.clusters(aws)
    finally:
        for url in made:
            api.delete_queue(QueueUrl=url)


class Counting(AwsHere):
    """AWS that counts its calls, by service."""

    def __init__(self, clients: Callable[[str], Any]) -> None:
        super().__init__(clients)
        self.calls: Counter[str] = Counter()

    def call(self, service: str, operation: str, **arguments: Any) -> dict[str, Any]:
        self.calls[service] += 1
        return super().call(service, operation, **arguments)


def test_the_index_replaces_the_lists_of_the_services_and_the_proof_of_down_does_not_ask_it(running: Stacks):
    reap, down = Counting(running.client), Counting(running.client)
    orphans.clusters(reap)
    assert reap.calls == {"resourcegroupstaggingapi": 2, "ec2": 1, "autoscaling": 1, "iam": 1}
    remains.find(down, name("nobody"), [])
    assert "resourcegroupstaggingapi" not in down.calls


@pytest.mark.parametrize("plant", [removal_role, function, rule])
def test_a_cluster_whose_name_is_shortened_in_names_is_found_by_its_tag(aws, plant):
    cluster = name("a-cluster-with-a-long-name")
    remove = plant(aws, cluster, start=cluster[:-5])
    try:
        assert len(remains.find(aws, cluster, [])) == 1
        assert cluster in orphans.clusters(aws) and cluster[:-5] not in orphans.clusters(aws)
    finally:
        remove()


@pytest.mark.parametrize("has_tag", [True, False], ids=["whole name in a tag", "no tag"])
def test_a_function_of_a_stack_of_somebody_else_is_no_orphan(aws: AwsHere, without_index: AwsHere, has_tag: bool):
    """Its logical id is Function, too, and CloudFormation has shortened its stack's name: no stack has that one."""
    stack = name("serverless-image-handler-production")
    remove = function(aws, stack, start=stack[:-5], tags={STACK_TAG: stack} if has_tag else {})
    try:
        for asked in (aws, without_index):
            assert not {stack, stack[:-5], ""} & orphans.clusters(asked)
        for cluster in (stack, stack[:-5]):
            assert remains.find(aws, cluster, []) == [], "`down` would wait for it"
    finally:
        remove()


@pytest.mark.parametrize("proof", [rule, removal_role])
def test_a_function_without_the_tag_is_a_clusters_if_its_stack_made_a_removal(aws: AwsHere, proof):
    cluster = name("a-cluster-from-the-console")
    removes = [function(aws, cluster, start=cluster[:-5], tags={STACK_TAG: cluster}), proof(aws, cluster)]
    try:
        assert cluster in orphans.clusters(aws) and cluster[:-5] not in orphans.clusters(aws)
        assert f"function {cluster[:-5]}-Function-0123456789AB" in remains.find(aws, cluster, [])
    finally:
        for remove in removes:
            remove()


class Refusing(AwsHere):
    """AWS for a user whose policy does not allow these operations."""

    def __init__(self, clients: Callable[[str], Any], *operations: str) -> None:
        super().__init__(clients)
        self._refused = operations

    def call(self, service: str, operation: str, **arguments: Any) -> dict[str, Any]:
        if operation not in self._refused:
            return super().call(service, operation, **arguments)
        error = ClientError({"Error": {"Code": "AccessDeniedException", "Message": "not authorized"}}, operation)
        raise translate(error, f"{service}:{operation}", "AWS") from error


class Unfiltered(AwsHere):
    """AWS whose answers ignore filters, as emulators' do."""

    def call(self, service: str, operation: str, **arguments: Any) -> dict[str, Any]:
        return super().call(service, operation, **{name: one for name, one in arguments.items() if name != "Filters"})

    def pages(self, service: str, operation: str, key: str, **arguments: Any) -> Iterator[Any]:
        given = {name: one for name, one in arguments.items() if name != "Filters"}
        return super().pages(service, operation, key, **given)


@pytest.mark.parametrize("plant", [launch_template, group_by("{}-head", [TAG])])
def test_what_is_left_of_one_cluster_is_not_taken_for_another_where_filters_are_ignored(running, aws, plant):
    old, other = name("old"), name("other")
    removes = [plant(aws, old), queue(aws, other)]
    try:
        found = {one.cluster: one.lines for one in orphans.find(Unfiltered(running.client))}
        assert found[other] == (f"queue {other}-HeadQueue-0123456789ab",)
    finally:
        for remove in removes:
            remove()


@pytest.mark.parametrize("operation", ["list_queues", "list_roles", "describe_tags", "describe_file_systems"])
def test_a_service_that_does_not_answer_is_named_and_the_others_are_looked_at(running, aws, operation):
    cluster, unanswered = name("left"), []
    remove = table(aws, cluster)
    try:
        found = orphans.find(Refusing(running.client, operation), unanswered.append)
        assert cluster in [one.cluster for one in found]
        assert any(operation in str(error) for error in unanswered)
    finally:
        remove()


@pytest.mark.parametrize(("service", "operation"), [("dynamodb", "list_tables"), ("ec2", "describe_vpcs")])
def test_a_proxys_page_is_no_empty_list(monkeypatch: pytest.MonkeyPatch, service: str, operation: str):
    behind_a_proxy = _answering(monkeypatch, service, [(200, b"<!DOCTYPE html>\n<html><body>Log in</body></html>")])
    with raises_code("call-failed", "web page"):
        list(behind_a_proxy.pages(service, operation, "Any"))


def test_a_call_that_a_load_balancer_of_aws_answers_with_a_page_is_tried_again(monkeypatch: pytest.MonkeyPatch):
    busy = b"<html><body><b>Http/1.1 Service Unavailable</b></body></html>"
    monkeypatch.setattr("botocore.endpoint.time", SimpleNamespace(sleep=lambda _: None))
    aws = _answering(monkeypatch, "dynamodb", [(503, busy), (200, b'{"TableNames": ["mine"]}')])
    assert list(aws.pages("dynamodb", "list_tables", "TableNames")) == ["mine"]


def _answering(monkeypatch: pytest.MonkeyPatch, service: str, answers: list[tuple[int, bytes]]) -> Aws:
    """Return an Aws whose service gives these answers, one after the other."""
    for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(key, "x")
    left = iter(answers)

    def answer(**_: Any) -> AWSResponse:
        status, body = next(left)
        made = AWSResponse("http://proxy", status, HeadersDict(), None)
        made._content = body
        return made

    aws = Aws(REGION)
    aws.client(service).meta.events.register("before-send", answer)
    return aws


@pytest.mark.parametrize(
    ("plant", "operation"),
    [(function, "list_tags"), (rule, "list_tags_for_resource"), (removal_role, "list_role_tags")],
)
def test_what_has_tags_that_the_user_may_not_read_is_somebody_elses(aws, running, plant, operation):
    cluster, own = name("secret"), name("own")
    removes = [plant(aws, cluster), queue(aws, own)]
    refusing = Refusing(running.client, operation)
    try:
        found = [one.cluster for one in orphans.find(refusing)]
        assert own in found and cluster not in found
        assert remains.find(refusing, cluster, []) == []
    finally:
        for remove in removes:
            remove()


@pytest.mark.parametrize(("age_s", "is_named"), [(DAY_S - 60, False), (DAY_S + 60, True)])
def test_a_file_system_is_old_enough_to_have_been_counted(aws: AwsHere, age_s: float, is_named: bool):
    cluster = name("young")
    remove = file_system(aws, cluster, age_s)
    try:
        assert (cluster in [one.cluster for one in orphans.find(aws)]) == is_named
    finally:
        remove()


def test_a_file_system_that_was_counted_when_it_was_new_may_have_data(aws: AwsHere, monkeypatch):
    cluster = name("stale")
    remove = file_system(aws, cluster, age_s=9 * DAY_S)
    (found,) = [one for one in aws.pages("efs", "describe_file_systems", "FileSystems") if _is_of(one, cluster)]
    made = efs_backends[ACCOUNT][REGION].file_systems_by_id[found["FileSystemId"]]
    counted = {"Value": 6144, "Timestamp": made.creation_time + 3600}
    monkeypatch.setattr(type(made), "size_in_bytes", property(lambda _: counted))
    try:
        assert cluster not in [one.cluster for one in orphans.find(aws)]
    finally:
        remove()


def test_a_queue_is_found_in_an_account_with_more_than_a_thousand(without_index, running):
    api, cluster = running.client("sqs"), name("zzz")
    made = [api.create_queue(QueueName=f"a-{number}")["QueueUrl"] for number in range(1000)]
    remove = queue(without_index, cluster)
    try:
        assert cluster in orphans.clusters(without_index)
    finally:
        remove()
        for url in made:
            api.delete_queue(QueueUrl=url)


def test_file_systems_of_all_pages_are_listed(aws, running):
    """EFS repeats the marker of the request in its answer, which is not that of the next page."""
    api = running.client("efs")
    made = {api.create_file_system(CreationToken=name("many"))["FileSystemId"] for _ in range(25)}
    try:
        pages = aws.pages("efs", "describe_file_systems", "FileSystems")
        listed = [one["FileSystemId"] for one in islice(pages, 1000)]
        assert made <= set(listed) and len(listed) == len(set(listed))
    finally:
        for one in made:
            api.delete_file_system(FileSystemId=one)


def test_a_file_system_with_data_or_in_use_is_not_left_behind(aws, running):
    cluster = name("keeps")
    remove = file_system(aws, cluster)
    (found,) = [one for one in aws.pages("efs", "describe_file_systems", "FileSystems") if _is_of(one, cluster)]
    where = file_systems.directory(running.context.state, found["FileSystemId"])
    try:
        assert found["SizeInBytes"]["Value"] == 6144
        (where / "data").touch()
        assert cluster not in [one.cluster for one in orphans.find(aws)]
        (where / "data").unlink()
        assert cluster in [one.cluster for one in orphans.find(aws)]
        assert remains.find(aws, cluster, []) == [], "`down` decides about it by the stack"
        vpc = aws.call("ec2", "create_vpc", CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
        subnet = aws.call("ec2", "create_subnet", VpcId=vpc, CidrBlock="10.0.1.0/24")["Subnet"]["SubnetId"]
        given = {"FileSystemId": found["FileSystemId"], "SubnetId": subnet}
        target = aws.call("efs", "create_mount_target", **given)["MountTargetId"]
        assert cluster not in [one.cluster for one in orphans.find(aws)]
        aws.call("efs", "delete_mount_target", MountTargetId=target)
    finally:
        remove()


def _is_of(found: dict[str, Any], cluster: str) -> bool:
    return {**TAG, "Value": cluster} in found["Tags"]


def test_a_failed_stack_of_somebody_else_is_no_cluster(aws, running):
    own = {"Type": "AWS::Logs::LogGroup"}
    wrong = {
        "Type": "AWS::EC2::Subnet",
        "DependsOn": "LogGroup",
        "Properties": {"VpcId": "vpc-0", "CidrBlock": "10.0.0.0/24"},
    }
    stack = running.create({"LogGroup": own, "Wrong": wrong}, OnFailure="DO_NOTHING")
    assert running.settled(stack) == "CREATE_FAILED"
    assert running.describe(stack)["StackName"] in orphans.clusters(aws)
    assert running.describe(stack)["StackName"] not in [one.cluster for one in orphans.find(aws)]
    running.deleted(stack)


@pytest.mark.parametrize("value", ["x;touch pwned", "x\n`touch pwned`", "$(touch pwned)", "--yes", "a" * 129, ""])
def test_a_tag_that_names_no_cluster_is_nobody_s_and_troubles_nobody(running, aws, value):
    """Everyone in the account who may tag something wrote it, and its words may be typed by whoever reads them."""
    remove, trouble = queue(aws, "stranger", {TAG["Key"]: value}), []
    try:
        assert orphans.find(aws, trouble.append) == []
        assert trouble == []
    finally:
        remove()
    assert tags.cluster_of({"Tags": [{**TAG, "Value": value}]}) == ""
