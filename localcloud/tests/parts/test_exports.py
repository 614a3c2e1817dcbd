"""Exports of stacks: what other stacks import, and what may not change or go while they do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError
from fleet_fakes import forget_resources, name
from stack_fakes import TOPIC, Stacks, stacks


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stacks]:
    with stacks(tmp_path_factory.mktemp("state")) as running:
        yield running
        forget_resources(running.context.account)


def exporting(export: str, text: str = "one") -> dict[str, Any]:
    return {"Outputs": {"Text": {"Value": text, "Export": {"Name": export}}}}


def importing(export: str) -> dict[str, Any]:
    return {"Topic": {**TOPIC, "Properties": {"DisplayName": {"Fn::ImportValue": {"Fn::Sub": export}}}}}


def test_a_stack_imports_what_another_exports(cloud):
    export = name("export")
    stack = cloud.made({"Topic": TOPIC}, sections=exporting(export))
    topic = cloud.physical(cloud.made(importing(export), StackName=name("user")), "Topic")
    assert cloud.client("sns").get_topic_attributes(TopicArn=topic)["Attributes"]["DisplayName"] == "one"
    listed = cloud.cloudformation.list_exports()["Exports"]
    assert {"ExportingStackId": stack, "Name": export, "Value": "one"} in listed


def test_a_name_that_nobody_exports_fails_the_stack(cloud):
    stack = cloud.create(importing("nobodys"))
    assert cloud.settled(stack) == "ROLLBACK_COMPLETE"
    assert cloud.reason(stack, "Topic", "CREATE_FAILED") == "No export named nobodys found."


def test_a_name_is_exported_once(cloud):
    export, owner = name("export"), name("owner")
    cloud.made({"Topic": TOPIC}, StackName=owner, sections=exporting(export))
    second = cloud.create({"Topic": TOPIC}, sections=exporting(export))
    assert cloud.settled(second) == "ROLLBACK_COMPLETE"
    history = [reason for _, status, reason in cloud.history(second) if status == "ROLLBACK_IN_PROGRESS"]
    assert history == [f"Export with name {export} is already exported by stack {owner}. Rollback requested by user."]


def test_what_is_imported_neither_goes_nor_changes(cloud):
    export, user = name("export"), name("user")
    stack = cloud.made({"Topic": TOPIC}, sections=exporting(export))
    used = cloud.made(importing(export), StackName=user)
    assert cloud.cloudformation.list_imports(ExportName=export)["Imports"] == [user]
    assert cloud.deleted(stack) == "CREATE_COMPLETE"
    reason = f"Export {export} cannot be deleted as it is in use by {user}"
    assert cloud.describe(stack)["StackStatusReason"] == reason
    changed = json.dumps({"Resources": {"Topic": TOPIC}, **exporting(export, "two")})
    cloud.cloudformation.update_stack(StackName=stack, TemplateBody=changed)
    assert cloud.settled(stack) == "UPDATE_ROLLBACK_COMPLETE"
    assert cloud.outputs(stack) == {"Text": "one"}
    assert cloud.deleted(used) == cloud.deleted(stack) == "DELETE_COMPLETE"
    with pytest.raises(ClientError, match=f"Export '{export}' is not imported by any stack"):
        cloud.cloudformation.list_imports(ExportName=export)
