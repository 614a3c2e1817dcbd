"""Keys of KMS: whether those who store and read something may use the key with which a service encrypts it.

A service uses a key in the name of its caller, of its own role, or as itself. The key's policy, a grant, or, where that
policy leaves it to IAM, the caller's own policies allow it (docs/aws-behaviour.md 6.7).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from moto.dynamodb.models import dynamodb_backends
from moto.kms.models import Key, kms_backends
from moto.sns.models import sns_backends
from moto.sqs.models import sqs_backends

from localcloud.api import partitions
from localcloud.cloudformation.errors import ResourceFailed
from localcloud.context import Context
from localcloud.iam import policy
from localcloud.iam.calls import Call
from localcloud.iam.policy import Ask, Decision

SENDS, READS = ("kms:GenerateDataKey", "kms:Decrypt"), ("kms:Decrypt",)
"""What whoever stores something needs, and whoever reads it."""
_STORES = ("kms:Encrypt", "kms:Decrypt", "kms:ReEncryptFrom", "kms:GenerateDataKey", "kms:DescribeKey")
_OF_DISKS = ("kms:GenerateDataKeyWithoutPlaintext", "kms:Decrypt", "kms:CreateGrant")

# Type → where its properties name a key.
_PROPERTIES: Mapping[str, tuple[str, ...]] = {
    "AWS::DynamoDB::Table": ("SSESpecification.KMSMasterKeyId",),
    "AWS::EFS::FileSystem": ("KmsKeyId",),
    "AWS::FSx::FileSystem": ("KmsKeyId",),
    "AWS::ImageBuilder::Component": ("KmsKeyId",),
    "AWS::Lambda::Function": ("KmsKeyArn", "Code.SourceKMSKeyArn"),
    "AWS::Logs::LogGroup": ("KmsKeyId",),
    "AWS::SNS::Topic": ("KmsMasterKeyId",),
    "AWS::SQS::Queue": ("KmsMasterKeyId",),
}
_OF_TABLES = "BatchGetItem BatchWriteItem DeleteItem GetItem PutItem Query Scan UpdateItem"
# Call → what its caller does with the key (docs/aws-behaviour.md 6.7).
_CALLS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys((f"dynamodb:{one}" for one in _OF_TABLES.split()), READS),
    "sns:Publish": SENDS,
    "sqs:ReceiveMessage": READS,
    "sqs:SendMessage": SENDS,
}


@dataclass(frozen=True)
class Caller:
    """Who uses a key: a role by its ARN, with the judgement of its own policies, or a service by its name."""

    name: str
    allows: Callable[[Ask], str] | None = None


def _scaling(context: Context) -> Caller:
    """Describe Auto Scaling's own role."""
    name = "aws-service-role/autoscaling.amazonaws.com/AWSServiceRoleForAutoScaling"
    return Caller(f"{partitions.arn()}:iam::{context.account}:role/{name}")


def named(kind: str, properties: Mapping[str, Any]) -> Iterator[str]:
    """Yield the keys that a resource's properties name, but for AWS's own."""
    for place in _PROPERTIES.get(kind, ()):
        found: Any = properties
        for step in place.split("."):
            found = found.get(step) if isinstance(found, Mapping) else None
        if found and not str(found).rpartition(":")[2].startswith("alias/aws/"):
            yield str(found)


def require(context: Context, kind: str, region: str, properties: Mapping[str, Any], name: str) -> None:
    """Raise ResourceFailed for a key that a new resource can't be encrypted with. `name` is the resource's own."""
    for one in named(kind, properties):
        key = _find(context, region, one)
        if kind == "AWS::Logs::LogGroup":
            service = Caller(f"logs.{region}.{partitions.of_principals()}")
            if key is None or _refused(context, key, service, _STORES[:1] + _STORES[3:4]):
                arn = f"{partitions.arn()}:logs:{region}:{context.account}:log-group:{name}"
                said = f"The specified KMS key does not exist or is not allowed to be used with Arn '{arn}'"
                raise ResourceFailed(f"{said} (Service: CloudWatchLogs, Status Code: 400)")
        if key is None:
            raise ResourceFailed(f"Key '{one}' does not exist (Service: Kms, Status Code: 400)")
        if key.key_state != "Enabled":
            raise ResourceFailed(f"{key.arn} is {key.key_state.lower()} (Service: Kms, Status Code: 400)")
        if "SourceKMSKeyArn" in properties.get("Code", {}):
            refusal = _refused(context, key, Caller("lambda.amazonaws.com"), SENDS)
            if refusal:
                raise ResourceFailed(f"{refusal} (Service: Lambda, Status Code: 400)")


def refusal_of_disk(context: Context, region: str, key_id: str | None) -> bool:
    """Whether Auto Scaling's own role may not use the key of a new instance's disk."""
    if not key_id or ":alias/aws/" in key_id or not key_id.startswith("arn:"):
        return False
    key = _find(context, region, key_id)
    # EBS's own key, which everybody in the account may use.
    if key is not None and key.id == _key_id(context.account, region, "alias/aws/ebs"):
        return False
    return key is None or bool(_refused(context, key, _scaling(context), _OF_DISKS))


def may_notify(context: Context, region: str, topic: str) -> bool:
    """Whether Auto Scaling's own role may use the key of a topic; if not, what it sends is lost."""
    found = sns_backends[context.account][region].topics.get(topic)
    caller = _scaling(context)
    return not _of_key(context, region, found.kms_master_key_id if found else "", caller, SENDS)


def may_deliver(account: str, region: str, queue: Any) -> bool:
    """Whether SNS may use the key of a queue; if not, what it delivers is lost."""
    key = getattr(queue, "kms_master_key_id", None)
    found = _key(account, region, key) if key else None
    if not key or key.startswith("alias/aws/"):
        return not key
    return found is not None and not _judged(found, account, Caller("sns.amazonaws.com"), SENDS)


def asked(context: Context, call: Call) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the keys that a call's caller uses through the service, each with what it does with it."""
    actions = _CALLS.get(call.action)
    if not actions:
        return
    account, region = context.account, call.region
    if call.service == "sqs":
        name = str(call.params.get("QueueUrl", "")).rstrip("/").rpartition("/")[2]
        stored: Iterable[Any] = [sqs_backends[account][region].queues.get(name)]
        keys = [getattr(one, "kms_master_key_id", None) for one in stored]
    elif call.service == "sns":
        topic = sns_backends[account][region].topics.get(str(call.params.get("TopicArn", "")))
        keys = [topic.kms_master_key_id if topic else None]
    else:
        names = [call.params.get("TableName"), *(call.params.get("RequestItems") or ())]
        tables = (dynamodb_backends[account][region].tables.get(str(one).rpartition("/")[2]) for one in names if one)
        keys = [(one.sse_specification or {}).get("KMSMasterKeyId") for one in tables if one]
    yield from ((one, actions) for one in keys if one and not one.startswith("alias/aws/"))


def refusal(context: Context, call: Call, caller: Caller) -> str:
    """Return why the caller may not use a key that its call needs; "" if it may, or needs none."""
    for key, actions in asked(context, call):
        if said := _of_key(context, call.region, key, caller, actions, call.service):
            return said
    return ""


def via(service: str, region: str) -> dict[str, list[str]]:
    """Return the condition key of a use of a key through a service."""
    return {"kms:viaservice": [f"{service}.{region}.{partitions.of_principals()}"]}


def arn_of(account: str, region: str, key: str) -> str:
    """Return the ARN of the key that a name stands for; of one that is not there, the name."""
    found = _key(account, region, key)
    return found.arn if found else key


def _of_key(
    context: Context, region: str, key_id: str | None, caller: Caller, actions: tuple[str, ...], service: str = "sns"
) -> str:
    if not key_id:
        return ""
    key = _find(context, region, key_id)
    if key is None:
        return f"Key '{key_id}' does not exist"
    return _refused(context, key, caller, actions, via(service, region))


def _find(context: Context, region: str, name: str) -> Key | None:
    return _key(context.account, region, name)


def _key(account: str, region: str, name: str) -> Key | None:
    """Return a key of the account by its id, its ARN or an alias, in this region only."""
    where = name.split(":")
    if len(where) > 4 and where[3] != region:
        return None
    return kms_backends[account][region].keys.get(_key_id(account, region, where[-1]))


def _key_id(account: str, region: str, last: str) -> str:
    """Return the id of the key behind an alias; of any other name, the id that it contains."""
    found = kms_backends[account][region].get_key_id_from_alias(last) if last.startswith("alias/") else None
    return found or last.removeprefix("key/")


def _refused(
    context: Context, key: Key, caller: Caller, actions: Iterable[str], keys: Mapping[str, list[str]] | None = None
) -> str:
    return _judged(key, context.account, caller, actions, keys)


def _judged(
    key: Key, account: str, caller: Caller, actions: Iterable[str], keys: Mapping[str, list[str]] | None = None
) -> str:
    if key.key_state != "Enabled":
        return f"{key.arn} is {key.key_state.lower()}."
    statements = policy.statements_of(json.loads(key.policy))
    given = {**(keys or {}), "kms:grantisforawsresource": ["true"], "kms:calleraccount": [account]}
    for action in actions:
        if _is_granted(key, caller, action):
            continue
        named_as = () if not caller.name.startswith("arn:") else (caller.name,)
        service = "" if named_as else caller.name
        direct = policy.decide(statements, Ask(action, key.arn, given, service, named_as))
        if direct is Decision.ALLOWED:
            continue
        root = (f"{partitions.arn()}:iam::{account}:root", account)
        left = policy.decide(statements, Ask(action, key.arn, given, "", root)) if named_as else direct
        said = "because no resource-based policy allows the action"
        if direct is not Decision.DENIED and left is Decision.ALLOWED and caller.allows is not None:
            own = caller.allows(Ask(action, key.arn, given))
            if not own:
                continue
            return own
        return f"User: {caller.name} is not authorized to perform: {action} on resource: {key.arn} {said}"
    return ""


def _is_granted(key: Key, caller: Caller, action: str) -> bool:
    operation = action.removeprefix("kms:")
    return any(one.grantee_principal == caller.name and operation in one.operations for one in key.grants.values())
