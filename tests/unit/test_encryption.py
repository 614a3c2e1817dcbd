"""A key of the user's encrypts everything that a stack stores, by the properties that AWS's schemas have for it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from aws_references import schema
from botocore.exceptions import ClientError
from clusters import FACTS, spec
from error_codes import raises_code
from plans import KEY, PLANS

from phalanx.aws import kms_keys
from phalanx.errors import CloudError, SpecError
from phalanx.images.base import base
from phalanx.images.image_stack import Order, request
from phalanx.images.place import Place
from phalanx.jobs.environments import recipe
from phalanx.plan.facts import KmsKey
from phalanx.plan.plan import make_plan
from phalanx.spec.spec import ClusterSpec
from phalanx.template.document import build
from phalanx.template.policy import of_service_role, policy

ALIAS = "arn:aws:kms:us-east-1:123456789012:alias/clusters"
NAMES = re.compile(r"kms.*(id|arn)$", re.I)
# Properties of a type that name a key, and are for what our stacks do not make.
NOT_OURS = {
    "AWS::EFS::FileSystem": {"ReplicationDestination"},
    "AWS::Lambda::Function": {"DurableConfig"},
}


def encrypted(name: str) -> dict[str, Any]:
    plan = PLANS[name]
    facts = replace(plan.facts, key=KmsKey(KEY))
    return build(
        replace(plan, spec=replace(plan.spec, kms_key=ALIAS.replace("us-east-1", plan.spec.region)), facts=facts)
    ).to_dict()


def named(value: Any, skipped: set[str]) -> Iterator[str]:
    """Yield the names of a schema's properties that take a key, at any depth."""
    for name, rules in value.items() if isinstance(value, dict) else ():
        if name in skipped:
            continue
        if NAMES.search(name) and isinstance(rules, dict) and rules.get("type", "string") != "object":
            yield name
        yield from named(rules, skipped)


def properties_with_keys(kind: str) -> set[str]:
    facts, skipped = schema(kind), NOT_OURS.get(kind, set())
    return {*named({part: facts.get(part, {}) for part in ("properties", "definitions")}, skipped)}


def given(value: Any) -> Iterator[tuple[str, Any]]:
    for name, one in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield str(name), one
        yield from given(one)


def missing(document: dict[str, Any]) -> dict[str, set[str]]:
    found = {}
    for name, resource in document["Resources"].items():
        wanted = properties_with_keys(resource["Type"])
        there = {key for key, value in given(resource.get("Properties", {})) if value == {"Ref": "KmsKey"}}
        if wanted - there:
            found[name] = wanted - there
    return found


@pytest.mark.parametrize("name", [one for one in PLANS if one != "lustre"])
def test_every_property_for_a_key_has_it(name):
    assert missing(encrypted(name)) == {}


def test_every_property_for_a_key_has_it_with_lustre_and_without_a_key_none_has():
    assert missing(encrypted("lustre")) == {}
    assert "Kms" not in json.dumps(build(PLANS["local"]).to_dict())


def test_the_stack_gets_the_key_behind_the_alias():
    assert encrypted("local")["Parameters"]["KmsKey"]["Default"] == KEY


def test_images_are_encrypted_as_well():
    order = Order(recipe("torch"), base("ubuntu-24.04"), "2026.1.1", "m5.large", place=Place(key=KEY, encrypted=True))
    assert missing(json.loads(request(order)[0])) == {}


@pytest.mark.parametrize(
    "wrong",
    [
        {"kms_key": ALIAS.replace("us-east-1", "eu-west-1")},
        {"kms_key": "arn:aws:kms:us-east-1:123456789012:alias/aws/sns"},
        {"kms_key": ALIAS, "storage": "lustre"},
        {"kms_key": "11111111-2222-3333-4444-555555555555"},
        {"kms_key": ALIAS, "cloud": "emr", "emr": {"logs": "s3://b/l"}, "type": "m5.xlarge"},
    ],
)
def test_keys_that_can_t_encrypt_it_are_refused(wrong):
    with pytest.raises(SpecError, match="key"):
        spec(**wrong)


def test_nodes_may_use_the_key_only_through_what_is_stored_with_it():
    document = encrypted("local")
    for role, services in (("HeadRole", {"sqs.*", "sns.*", "dynamodb.*"}), ("WorkerRole", {"sqs.*", "dynamodb.*"})):
        policies = document["Resources"][role]["Properties"]["Policies"]
        (only,) = [one for one in policies[0]["PolicyDocument"]["Statement"] if "kms:Decrypt" in one["Action"]]
        assert {*only["Condition"]["StringLike"]["kms:ViaService"]} == services
        assert only["Resource"] == {"Ref": "KmsKey"}


def test_a_document_does_not_encrypt_with_an_alias_but_asks_for_its_key(phalanx):
    """Without the cloud, nobody knows which key it stands for; policies and half of the resources take no alias."""
    Path("phalanx.yaml").write_text(f"name: demo\ncloud: local\nnodes: 2\nkms_key: {ALIAS}\n")
    assert phalanx("template", "--offline") == 0
    asked = json.loads(phalanx.out)["Parameters"]["KmsKey"]
    assert "Default" not in asked
    assert re.fullmatch(asked["AllowedPattern"], KEY) and not re.fullmatch(asked["AllowedPattern"], ALIAS)
    assert "alias/clusters" in asked["Description"]


@pytest.mark.parametrize("role", ["", "arn:aws:iam::123456789012:role/r"])
def test_the_person_s_rights_on_the_key_are_through_services_and_for_their_grants(role):
    document = encrypted("local")
    whole = [policy(document, "demo", service_role=role)]
    whole += [of_service_role(document, "demo")["PolicyDocument"]] if role else []
    for statements in (one["Statement"] for one in whole):
        found = {action: one for one in statements for action in one["Action"] if action.startswith("kms:")}
        assert {*found} - {"kms:ListAliases"} and all(
            one["Resource"] == [KEY] for action, one in found.items() if action != "kms:ListAliases"
        )
        for action, one in found.items():
            if action not in ("kms:DescribeKey", "kms:GetKeyPolicy", "kms:ListAliases", "kms:ListGrants"):
                assert "kms:ViaService" in one["Condition"]["StringLike"]
            if action.endswith("Grant"):
                assert one["Condition"]["Bool"] == {"kms:GrantIsForAWSResource": "true"}


def test_rights_on_a_key_known_by_its_alias_are_on_the_key_behind_it(phalanx):
    """IAM matches no key by an alias's ARN (docs/aws-behaviour.md 6.7)."""
    Path("phalanx.yaml").write_text(f"name: demo\nnodes: 2\nkms_key: {ALIAS}\n")
    for command in (("policy", "--offline"), ("policy", "--images", "--file", "phalanx.yaml")):
        assert phalanx(*command) == 0
        found = [one for one in json.loads(phalanx.out)["Statement"] if "kms" in str(one.get("Resource"))]
        assert found
        for one in found:
            assert one["Resource"] == ["arn:aws:kms:us-east-1:123456789012:key/*"]
            assert one["Condition"]["ForAnyValue:StringEquals"] == {"kms:ResourceAliases": "alias/clusters"}


def test_a_plan_without_a_look_at_the_policy_names_who_must_be_let_in():
    facts = replace(FACTS, key=KmsKey(KEY, "you may not call kms:GetKeyPolicy"))
    from phalanx.plan.plan_text import warnings

    (text,) = [one for one in warnings(make_plan(spec(kms_key=KEY), facts)) if "KMS" in one or "kms:" in one]
    assert all(one in text for one in ("AWSServiceRoleForAutoScaling", "logs.us-east-1", "sns.", "lambda."))


class Kms:
    """KMS with one key; `answers` are those of operations that differ, and an exception is raised."""

    def __init__(self, *statements: dict[str, Any], grants: tuple[str, ...] = (), **answers: Any) -> None:
        self.answers = {
            "describe_key": {"KeyMetadata": {"Arn": KEY, "KeyState": "Enabled", "KeyManager": "CUSTOMER"}},
            "get_key_policy": {"Policy": json.dumps({"Statement": [*statements]})},
            "list_grants": {"Grants": [{"GranteePrincipal": one} for one in grants]},
            "get_caller_identity": {"Account": "123456789012"},
            **answers,
        }

    def call(self, _service: str, operation: str, **_: Any) -> dict[str, Any]:
        answer = self.answers[operation]
        if isinstance(answer, Exception):
            raise answer
        return answer

    exists = call

    def pages(self, service: str, operation: str, key: str, **arguments: Any) -> Iterator[Any]:
        yield from self.call(service, operation, **arguments)[key]


def find(kms: Kms, region: str = "us-east-1") -> KmsKey:
    named = KEY.replace("us-east-1", region)
    found = kms_keys.find(cast("Any", kms), ClusterSpec(name="demo", nodes=2, region=region, kms_key=named))
    assert found
    return found


def allow(principal: Any, **more: Any) -> dict[str, Any]:
    return {"Effect": "Allow", "Principal": principal, "Action": "kms:*", "Resource": "*", **more}


def denied() -> CloudError:
    error = CloudError("you may not do that", code="cloud-refused")
    error.__cause__ = ClientError({"Error": {"Code": "AccessDeniedException"}}, "DescribeKey")
    return error


def granted(*operations: str) -> dict[str, Any]:
    return {"Grants": [{"GranteePrincipal": SCALING, "Operations": list(operations)}]}


SCALING, *SERVICES = KmsKey(KEY).users("us-east-1", "123456789012")
ROOT = allow({"AWS": "arn:aws:iam::123456789012:root"})
ALL = allow({"AWS": SCALING, "Service": SERVICES})


@pytest.mark.parametrize(
    "kms",
    [
        Kms(ROOT, ALL),
        Kms(ROOT, allow({"Service": SERVICES}), grants=(SCALING,)),
        Kms(
            ROOT,
            {**ALL, "Action": ["KMS:decrypt", "kms:Generate*", "kms:CreateGrant"]},
        ),
        Kms(
            ROOT,
            allow({"Service": SERVICES}),
            list_grants=granted("Decrypt", "GenerateDataKeyWithoutPlaintext", "CreateGrant"),
        ),
        Kms(ROOT, allow({"AWS": [SCALING]}), *(allow({"Service": one}) for one in SERVICES)),
    ],
)
def test_a_key_whose_policy_and_grants_name_all_is_taken(kms):
    assert find(kms) == KmsKey(KEY)


@pytest.mark.parametrize(
    ("kms", "lacking"),
    [
        (Kms(ROOT), {SCALING, *SERVICES}),
        (Kms(ROOT, allow({"Service": SERVICES})), {SCALING}),
        (Kms(ROOT, allow({"AWS": f"{SCALING}_other", "Service": SERVICES})), {SCALING}),
        (Kms(ROOT, {**ALL, "Effect": "Deny"}), {SCALING, *SERVICES}),
        (Kms(ROOT, {**ALL, "Action": "kms:DescribeKey"}), {SCALING, *SERVICES}),
        (Kms(ROOT, {**ALL, "Action": ["kms:Decrypt", "kms:GenerateDataKey*"]}), {SCALING}),
        (Kms(ROOT, allow({"Service": SERVICES}), list_grants=granted("Decrypt", "Encrypt")), {SCALING}),
        (Kms({**ROOT, "Condition": {"ArnLike": {"aws:PrincipalArn": SCALING}}}), {SCALING, *SERVICES}),
    ],
)
def test_a_key_that_surely_lacks_somebody_is_refused_with_all_whom_it_lacks(kms, lacking):
    with raises_code("key-unsuited") as refused:
        find(kms)
    assert {one for one in (SCALING, *SERVICES) if f"\n{one} (" in refused.value.message} == lacking


@pytest.mark.parametrize(
    "kms",
    [
        Kms(ROOT, allow("*", Condition={"StringEquals": {"kms:CallerAccount": "123456789012"}})),
        Kms(ROOT, allow({"AWS": ["*"]}, Condition={"StringEquals": {"aws:PrincipalOrgID": "o-1"}})),
        Kms(ROOT, {"Effect": "Allow", "NotPrincipal": {"AWS": "arn:aws:iam::1:root"}, "Action": "kms:*"}),
        Kms(get_key_policy={"Policy": "no JSON"}),
        Kms(get_key_policy={"Policy": "[]"}),
        Kms(get_key_policy=denied()),
        Kms(ALL, list_grants=denied()),
        Kms(describe_key=denied()),
    ],
)
def test_where_it_is_not_sure_who_may_use_a_key_the_plan_warns(kms):
    found = find(kms)
    (text,) = found.warnings("us-east-1")
    assert found.arn == KEY
    assert "AWSServiceRoleForAutoScaling" in text


@pytest.mark.parametrize(
    "wrong",
    [{"KeyState": "PendingDeletion"}, {"KeySpec": "RSA_2048"}, {"KeyManager": "AWS"}],
)
def test_keys_that_can_t_encrypt_or_are_aws_s_are_refused(wrong):
    with raises_code("key-unsuited"):
        find(Kms(ALL, describe_key={"KeyMetadata": {"Arn": KEY, "KeyState": "Enabled", **wrong}}))


@pytest.mark.parametrize(
    ("region", "logs"),
    [
        ("cn-north-1", "logs.cn-north-1.amazonaws.com.cn"),
        ("us-gov-west-1", "logs.us-gov-west-1.amazonaws.com"),
        ("eusc-de-east-1", "logs.eusc-de-east-1.amazonaws.eu"),
    ],
)
def test_the_principal_of_logs_has_the_domain_of_its_partition(region, logs):
    users = {one for one in KmsKey(KEY).users(region, "123456789012") if not one.startswith("logs.")}
    statements = [allow({"AWS" if one.startswith("arn:") else "Service": one}) for one in users]
    assert not find(Kms(*statements, allow({"Service": logs})), region).doubt
    if not region.startswith("eusc"):
        assert logs in KmsKey(KEY).users(region, "123456789012")
