"""What nodes may have this process keep for them: each node its share, whatever it sends, and this machine's user all.

moto keeps everything in memory. Each kind of things has a ledger, by the node that had them made; where a ledger has no
room, the things are counted again, because many are gone by then. localcloud/docs/isolation.md lists the limits.
"""

from __future__ import annotations

import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from moto.cloudwatch.models import MetricDatumBase, cloudwatch_backends
from moto.dynamodb.models import dynamodb_backends
from moto.dynamodb.models.dynamo_type import DynamoType, Item
from moto.logs.models import LogEvent, logs_backends
from moto.s3.models import FakeKey, s3_backends
from moto.sqs.models import sqs_backends

from localcloud.api import throttling
from localcloud.api.admission import PEER, USER, Peer, Share, served, serving
from localcloud.context import Context
from localcloud.iam import calls, errors
from localcloud.iam.calls import Call

App = Callable[[dict[str, Any], Any], Iterable[bytes]]

_MIB = 1 << 20
_MEMORY_BYTES = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
_COUNT_EVERY_S = 1.0
# Roughly what Python takes for an object with its attributes, for a text, and for an element of a list.
_OBJECT_BYTES, _TEXT_BYTES, _ELEMENT_BYTES = 1024, 64, 64
# Nothing that stays.
_KEEPS_NOTHING = re.compile(
    "(Abort|BatchGet|ChangeMessageVisibility|Delete|Describe|Filter|Get|Head|List|Purge|Query|Receive|Remove|Scan"
    "|Simulate|TransactGet|Untag|Validate).*"
)
_COPIES = ("CopyObject", "UploadPartCopy")

# messaging.queues does so for messages.
_made_by: dict[Any, Callable[..., None]] = {made: made.__init__ for made in (FakeKey, Item, LogEvent, MetricDatumBase)}
_copied_item = Item.__deepcopy__

PATCHED = tuple(f"{made.__module__}.{made.__qualname__}.__init__" for made in _made_by)


@dataclass
class Ledger:
    """What each node has kept of one kind of things; `lists` yields all things, in lists from the oldest on.

    Where `drops`, the older half of a node's own things makes room for new ones; otherwise the node is refused. Without
    `lists`, nothing can be counted: what a node has had made is forgotten at an even rate, all of it within an hour.
    """

    share: Share
    size: Callable[[Any], int] = len
    lists: Callable[[str], Iterator[list[Any]]] | None = None
    drops: bool = False
    _counting: threading.Lock = field(default_factory=threading.Lock)
    counted_s: float = 0.0

    def admits(self, context: Context, peer: Peer, count: int) -> bool:
        """Enter this many bytes more; return whether there was room."""
        return self.share.take(peer, count) or (self._made_room(context, peer) and self.share.take(peer, count))

    def _made_room(self, context: Context, peer: Peer) -> bool:
        with self._counting:
            now_s = context.clock.now().timestamp()
            if now_s < self.counted_s + _COUNT_EVERY_S and not self.drops:
                return False
            before_s, self.counted_s = self.counted_s, now_s
            if self.lists is None:
                left = max(0.0, 1 - (now_s - before_s) / 3600)
                self.share.settle({one: int(taken * left) for one, taken in self.share.taken().items()})
                return True
            if self.drops:
                self._drop(context, peer)
            self.count(context)
            return True

    def count(self, context: Context) -> None:
        """Enter what is really there."""
        found: Counter[Peer] = Counter()
        for things in self.lists(context.account) if self.lists else ():
            for thing in list(things):
                found[getattr(thing, "kept_for", USER)] += self.size(thing)
        self.share.settle(found)

    def _drop(self, context: Context, peer: Peer) -> None:
        for things in self.lists(context.account) if self.lists else ():
            # What is appended meanwhile stays.
            known = list(things)
            own = [thing for thing in known if getattr(thing, "kept_for", USER) == peer]
            gone = {id(thing) for thing in own[: (len(own) + 1) // 2]}
            things[: len(known)] = [thing for thing in known if id(thing) not in gone]


def memory(value: Any) -> int:
    """Return roughly what Python takes for parsed parameters."""
    if isinstance(value, DynamoType):
        return _OBJECT_BYTES // 2 + memory(value.value)
    if isinstance(value, Mapping):
        return 4 * _ELEMENT_BYTES + sum(memory(one) + memory(key) for key, one in value.items())
    if isinstance(value, (list, tuple, set)):
        return _ELEMENT_BYTES + sum(_ELEMENT_BYTES + memory(one) for one in value)
    return _TEXT_BYTES + (len(value) if isinstance(value, (str, bytes)) else 0)


def _messages(account: str) -> Iterator[list[Any]]:
    for backend in list(sqs_backends[account].values()):
        yield from (queue._messages for queue in list(backend.queues.values()))


def _events(account: str) -> Iterator[list[Any]]:
    for backend in list(logs_backends[account].values()):
        for group in list(backend.groups.values()):
            yield from (stream.events for stream in list(group.streams.values()))


def _metrics(account: str) -> Iterator[list[Any]]:
    yield from (backend.metric_data for backend in list(cloudwatch_backends[account].values()))


def _items(account: str) -> Iterator[list[Any]]:
    for backend in list(dynamodb_backends[account].values()):
        for table in list(backend.tables.values()):
            by_hash = list(table.items.values())
            yield from ([*one.values()] for one in by_hash) if table.range_key_attr else [by_hash]


def _objects(account: str) -> Iterator[list[Any]]:
    for backend in list(s3_backends[account].values()):
        for bucket in list(backend.buckets.values()):
            yield from list(dict.values(bucket.keys))
            yield from (list(upload.parts.values()) for upload in list(bucket.multiparts.values()))


class Quotas:
    """The ledgers of one local cloud."""

    def __init__(self, context: Context) -> None:
        self._context = context
        most_of_objects = _MEMORY_BYTES // 8
        self._objects = Ledger(Share(64 * _MIB, most_of_objects, most_of_objects), _of_object, _objects)
        self._others = Ledger(Share(_MIB, 8 * _MIB, 64 * _MIB), counted_s=context.clock.now().timestamp())
        messages = Ledger(Share(_MIB, 4 * _MIB, 32 * _MIB), _of_message, _messages)
        events = Ledger(Share(4 * _MIB, 16 * _MIB, 128 * _MIB), _of_event, _events, drops=True)
        metrics = Ledger(Share(4 * _MIB, 16 * _MIB, 128 * _MIB), _of_metric, _metrics, drops=True)
        items = Ledger(Share(4 * _MIB, 32 * _MIB, 128 * _MIB), _of_item, _items)
        self._by_action = {
            **dict.fromkeys(("sqs:SendMessage", "sqs:SendMessageBatch"), messages),
            "logs:PutLogEvents": events,
            "cloudwatch:PutMetricData": metrics,
            **{f"dynamodb:{name}": items for name in _WRITES_ITEMS},
            **{f"s3:{name}": self._objects for name in ("PutObject", "UploadPart", *_COPIES)},
        }

    def refusal(self, peer: Peer, call: Call) -> tuple[str, str] | None:
        """Return the service's code and message for a call that keeps more than the node may; None for others."""
        ledger = self._by_action.get(f"{call.service}:{call.operation}", self._others)
        if peer == USER or (ledger is self._others and _KEEPS_NOTHING.fullmatch(call.operation)):
            return None
        count = _OBJECT_BYTES + (len(call.body) if ledger is self._objects else memory(call.params))
        return None if ledger.admits(self._context, peer, count) else throttling.refusal(call.service)

    def after(self, call: Call) -> None:
        """Enter what a call has made that its parameters do not show."""
        if call.service == "s3" and call.operation in _COPIES:
            self._objects.count(self._context)


_WRITES_ITEMS = (
    "PutItem",
    "UpdateItem",
    "BatchWriteItem",
    "TransactWriteItems",
    "BatchExecuteStatement",
    "ExecuteStatement",
    "ExecuteTransaction",
)


def _of_message(message: Any) -> int:
    return 2 * _OBJECT_BYTES + len(message.body) + memory(message.message_attributes)


def _of_event(event: Any) -> int:
    return _OBJECT_BYTES // 2 + len(event.message)


def _of_metric(metric: Any) -> int:
    return _OBJECT_BYTES // 2 * (1 + len(metric.dimensions))


def _of_item(item: Any) -> int:
    return _OBJECT_BYTES + memory(item.attrs)


def _of_object(key: Any) -> int:
    return 4 * _OBJECT_BYTES + key.size


def install(_context: Context) -> None:
    """Note with each thing which node had it made."""
    for made, create in _made_by.items():
        made.__init__ = _noting(create)
    Item.__deepcopy__ = _copy_of_item


def _noting(create: Callable[..., None]) -> Callable[..., None]:
    def noted(self: Any, *arguments: Any, **named: Any) -> None:
        create(self, *arguments, **named)
        self.kept_for = served()

    return noted


def _copy_of_item(self: Any, memo: dict[int, Any]) -> Any:
    """Copy an item with the note of its node: a transaction that fails puts copies in their places."""
    copy: Any = _copied_item(self, memo)
    copy.kept_for = getattr(self, "kept_for", USER)
    return copy


def wrap(context: Context, app: App) -> App:
    """Return `app` with the quotas of nodes. `iam.wrap` must stand before it: it parses the call."""
    quotas = Quotas(context)

    def limited(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        peer, call = environ.get(PEER, USER), environ[calls.PARSED]
        if refusal := quotas.refusal(peer, call):
            return errors.throttled(call, *refusal, start_response)
        with serving(peer):
            answer = app(environ, start_response)
        quotas.after(call)
        return answer

    return limited
