"""Which items of DynamoDB's tables a call touches: policies may restrict a table by its partition key."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from moto.dynamodb.models import dynamodb_backends

from localcloud.iam.calls import Call
from localcloud.iam.target import Target


def table(call: Call, account: str) -> Iterator[Target]:
    """DynamoDB: the table, or the index that is queried, with the partition keys touched."""
    name = str(call.params.get("TableName", ""))
    keys = {"dynamodb:leadingkeys": _leading_keys(call, account, name)}
    yield Target(_table_arn(call, account, name, call.params.get("IndexName")), keys)


def batch_tables(call: Call, account: str) -> Iterator[Target]:
    """DynamoDB's batches name several tables."""
    for name, content in (call.params.get("RequestItems") or {}).items():
        requests = content if isinstance(content, list) else content.get("Keys", [])
        key = _partition_key(call, account, name)
        found = [_text(_batch_item(request).get(key)) for request in requests]
        yield Target(_table_arn(call, account, name), {"dynamodb:leadingkeys": found})


def _table_arn(call: Call, account: str, name: str, index: Any = None) -> str:
    arn = name if name.startswith("arn:") else f"arn:aws:dynamodb:{call.region}:{account}:table/{name}"
    return f"{arn}/index/{index}" if index else arn


def _leading_keys(call: Call, account: str, name: str) -> list[str]:
    """Return the values of the partition key in the call; none for a scan."""
    item = call.params.get("Key") or call.params.get("Item")
    if item:
        return [_text(item.get(_partition_key(call, account, name)))]
    # In a query, the condition compares the partition key first.
    condition = str(call.params.get("KeyConditionExpression", ""))
    values = call.params.get("ExpressionAttributeValues") or {}
    first = re.search(r"=\s*(:\w+)", condition)
    return [_text(values.get(first.group(1)))] if first else []


def _partition_key(call: Call, account: str, name: str) -> str:
    found = dynamodb_backends[account][call.region].tables.get(name.rpartition("/")[2])
    return str(found.hash_key_attr) if found else ""


def _text(value: dict[str, Any] | None) -> str:
    """Return the value of an attribute: "x" for {"S": "x"}."""
    return str(next(iter(value.values()))) if value else ""


def _batch_item(request: dict[str, Any]) -> dict[str, Any]:
    put, delete = request.get("PutRequest"), request.get("DeleteRequest")
    return put.get("Item", {}) if put else delete.get("Key", {}) if delete else request
