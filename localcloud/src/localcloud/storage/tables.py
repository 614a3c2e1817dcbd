"""DynamoDB's limits: the size of an item, and the reads of a partition (docs/aws-behaviour.md 8).

moto limits an item to 405,000 bytes, which it counts in another way, and does not limit reads.
"""

from __future__ import annotations

import base64
import copy
import inspect
import json
import math
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from moto.dynamodb.exceptions import ItemSizeToUpdateTooLarge
from moto.dynamodb.models import DynamoDBBackend
from moto.dynamodb.models.dynamo_type import Item, LimitedSizeDict
from moto.dynamodb.models.table import Table

from localcloud.context import Context
from localcloud.iam import calls, errors
from localcloud.iam.calls import Call

App = Callable[[dict[str, Any], Any], Iterable[bytes]]

PATCHED = (
    "moto.dynamodb.models.dynamo_type.LimitedSizeDict.__setitem__",
    "moto.dynamodb.models.DynamoDBBackend.update_item",
    "moto.dynamodb.models.table.Table.query",
    "moto.dynamodb.models.table.Table.scan",
    "moto.dynamodb.models.table.Table._get_last_evaluated_key",
)

ITEM_MOST_BYTES = 400 * 1024
READ_UNITS_PER_S = 3000.0
_READ_UNIT_BYTES = 4096
_MOST_PARTITIONS = 10_000
# Amazon DynamoDB Developer Guide, "Quotas": expressions.
_EXPRESSION_MOST_BYTES = 4096
_TOO_LARGE = ("ValidationException", "Item size has exceeded the maximum allowed size")
_TOO_LONG = (
    "ValidationException",
    "Invalid UpdateExpression: Expression size has exceeded the maximum allowed size; expression size:",
)
EXHAUSTED = (
    "ProvisionedThroughputExceededException",
    "The level of configured provisioned throughput for the table was exceeded. Consider increasing your provisioning"
    " level with the UpdateTable API.",
)


_moto_update_item = DynamoDBBackend.update_item
_query, _scan = Table.query, Table.scan


@dataclass
class _Bucket:
    """A partition's read units: they are refilled every second, and the read that takes the last may take more."""

    units: float
    at_s: float


class _Wish(NamedTuple):
    """An item that a call reads, and the options with which it does."""

    table: str
    key: dict[str, Any]
    options: Mapping[str, Any]
    is_of_batch: bool

    @property
    def partition(self) -> tuple[str, str]:
        return self.table, json.dumps(self.key, sort_keys=True)

    @property
    def is_consistent(self) -> bool:
        return bool(self.options.get("ConsistentRead"))


class Tables:
    """All tables' partitions; a partition key's items are in one partition."""

    def __init__(self, context: Context) -> None:
        self._clock = context.clock
        self._lock = threading.Lock()
        self._buckets: dict[tuple[str, str], _Bucket] = {}

    def is_exhausted(self, partition: tuple[str, str]) -> bool:
        with self._lock:
            return self._refilled(partition).units <= 0

    def charge(self, partition: tuple[str, str], units: float) -> None:
        with self._lock:
            self._refilled(partition).units -= units

    def _refilled(self, partition: tuple[str, str]) -> _Bucket:
        now_s = self._clock.now().timestamp()
        if len(self._buckets) > _MOST_PARTITIONS:
            # Nothing was read from the others for a second: they are full again. A key need not be that of an item.
            self._buckets = {key: one for key, one in self._buckets.items() if one.at_s > now_s - 1}
        bucket = self._buckets.setdefault(partition, _Bucket(READ_UNITS_PER_S, now_s))
        bucket.units = min(READ_UNITS_PER_S, bucket.units + (now_s - bucket.at_s) * READ_UNITS_PER_S)
        bucket.at_s = now_s
        return bucket


def install(_context: Context) -> None:
    """Take moto's limit away, and check what an update has made: `list_append(a, a)` doubles an item."""
    LimitedSizeDict.__setitem__ = dict.__setitem__  # type: ignore[method-assign]
    DynamoDBBackend.update_item = _update_item
    setattr(Table, "query", _with_key(_query))  # noqa: B010 (pyright knows the originals)
    setattr(Table, "scan", _with_key(_scan))  # noqa: B010


def _with_key(read: Callable[..., Any]) -> Callable[..., Any]:
    """Let a page that is full end with a key, also where it is the last: DynamoDB does not look further."""
    signature = inspect.signature(read)

    def page(self: Table, *arguments: Any, **named: Any) -> tuple[list[Item], int, dict[str, Any] | None]:
        items, count, key = read(self, *arguments, **named)
        asked = signature.bind(self, *arguments, **named).arguments
        if key is None and items and len(items) == asked.get("limit") and not asked.get("index_name"):
            key = self._get_last_evaluated_key(items[-1], None)
        return items, count, key

    return page


def _update_item(self: DynamoDBBackend, table_name: str, key: dict[str, Any], *arguments: Any, **named: Any) -> Item:
    table = self.get_table(table_name)
    values = self.get_keys_value(table, key)
    before = copy.deepcopy(table.get_item(*values))
    item = _moto_update_item(self, table_name, key, *arguments, **named)
    if item_bytes(item.to_json()["Attributes"]) > ITEM_MOST_BYTES:
        if before is None:
            table.delete_item(*values)
        else:
            item.attrs = before.attrs
        raise ItemSizeToUpdateTooLarge
    return item


def wrap(context: Context, app: App) -> App:
    """Return `app` with DynamoDB's limits. `iam.wrap` must stand before it: it parses the call."""
    tables = Tables(context)

    def limited(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        call = environ.get(calls.PARSED)
        if call is None or call.service != "dynamodb":
            return app(environ, start_response)
        if call.operation == "PutItem" and item_bytes(call.params.get("Item", {})) > ITEM_MOST_BYTES:
            return errors.refused(call, *_TOO_LARGE, start_response)
        if len(str(call.params.get("UpdateExpression", ""))) > _EXPRESSION_MOST_BYTES:
            return errors.refused(call, *_TOO_LONG, start_response)
        if call.operation in ("GetItem", "BatchGetItem"):
            return _read(tables, call, app, environ, start_response)
        return app(environ, start_response)

    return limited


def _read(tables: Tables, call: Call, app: App, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """Refuse a batch of which one partition is exhausted, too: DynamoDB would leave out that item alone."""
    wishes = _wishes(call)
    if any(tables.is_exhausted(wish.partition) for wish in wishes):
        return errors.refused(call, *EXHAUSTED, start_response)
    answer = b"".join(app(environ, start_response))
    content = json.loads(answer)
    for wish in wishes:
        answered = content.get("Responses", {}).get(wish.table, []) if wish.is_of_batch else [content.get("Item", {})]
        item = next((one for one in answered if wish.key.items() <= one.items()), {})
        units = max(1, math.ceil(item_bytes(item) / _READ_UNIT_BYTES))
        tables.charge(wish.partition, units if wish.is_consistent else units / 2)
    return [answer]


def _wishes(call: Call) -> list[_Wish]:
    if call.operation == "GetItem":
        return [_Wish(str(call.params.get("TableName")), call.params.get("Key") or {}, call.params, False)]
    tables = call.params.get("RequestItems") or {}
    return [_Wish(name, key, wish, True) for name, wish in tables.items() for key in wish.get("Keys", [])]


def item_bytes(item: Mapping[str, Any]) -> int:
    """Return an item's size as DynamoDB counts it: the UTF-8 of its attributes' names and values."""
    return sum(len(name.encode()) + _value_bytes(value) for name, value in item.items())


def _value_bytes(value: Mapping[str, Any]) -> int:
    """Count a value of the types that have text; maps and lists add 3 bytes, and 1 for each element."""
    ((kind, content),) = value.items()
    if kind == "M":
        return 3 + len(content) + item_bytes(content)
    if kind == "L":
        return 3 + sum(1 + _value_bytes(one) for one in content)
    if kind in ("SS", "NS", "BS"):
        return sum(len(one.encode()) for one in content)
    return len(base64.b64decode(content) if kind == "B" else str(content).encode())
