"""Items of a cluster's roster table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws


def item(aws: Aws, table: str, key: str) -> dict[str, str] | None:
    """Return an item, its attributes as text; None if it or the table does not exist."""
    answer = aws.exists("dynamodb", "get_item", TableName=table, Key={"item": {"S": key}}, ConsistentRead=True)
    found = (answer or {}).get("Item")
    return {name: next(iter(value.values())) for name, value in found.items()} if found else None


def put(aws: Aws, table: str, key: str, **attributes: dict[str, Any]) -> None:
    """Write an item with the user's rights, which no job and no worker has."""
    aws.call("dynamodb", "put_item", TableName=table, Item={"item": {"S": key}, **attributes})
