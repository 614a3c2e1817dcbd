"""SQS of the local cloud: each message carries its sender, and sending or receiving one takes constant time.

moto gives all messages the same sender, and looks at all of them, with slow clocks, whenever it sends or delivers one:
a sender of delayed messages would take a core.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

from moto.core import utils
from moto.sqs.models import Message, Queue, SQSBackend

from localcloud.api import admission
from localcloud.context import Context
from localcloud.iam import credentials
from localcloud.weather.sky import Weather

PATCHED = (
    "moto.sqs.models.SQSBackend.is_message_valid_based_on_retention_period",
    "moto.sqs.models.unix_time",
    "moto.sqs.models.unix_time_millis",
    "moto.sqs.models.Message.__init__",
    "moto.sqs.models.SQSBackend.send_message",
    "moto.sqs.models.Message.change_visibility",
    "moto.sqs.models.Message.mark_received",
    "moto.sqs.models.Queue.add_message",
    "moto.sqs.models.Queue.delete_message",
    "moto.sqs.models.Queue.messages",
    "moto.sqs.models.Queue.approximate_number_of_messages",
    "moto.sqs.models.Queue.approximate_number_of_messages_delayed",
    "moto.sqs.models.Queue.approximate_number_of_messages_not_visible",
)

_MS = 1000
_moto_message = Message.__init__
_moto_send = SQSBackend.send_message
_moto_mark_received, _moto_change_visibility = Message.mark_received, Message.change_visibility
_moto_add, _moto_delete = Queue.add_message, Queue.delete_message
_COUNTS = ("", "_delayed", "_not_visible")
_moto_counts: dict[str, Any] = {name: getattr(Queue, f"approximate_number_of_messages{name}") for name in _COUNTS}
# Counts of more messages than this are up to a second old; AWS's, up to a minute (GetQueueAttributes, API reference).
_EXACT, _COUNT_EVERY_S = 1000, 1.0
# AWS promises that the last one is valid, and no more (SQS Developer Guide, "Queue and message identifiers").
_MOST_HANDLES, _MOST_DELETED = 10, 10_000
# Bad weather: docs/aws-behaviour.md 11.3.
_LATE_S = 10.0
_TWICE = 0.1
_LATE = 0.3


def install(context: Context) -> None:
    """Replace the sender of a message, and the checks that moto makes for each message, several times per call."""
    Message.__init__ = _message_through(context.weather)
    SQSBackend.send_message = _send_through(context.weather)
    SQSBackend.is_message_valid_based_on_retention_period = _is_kept
    Message.change_visibility, Message.mark_received = _change_visibility, _mark_received
    Queue.add_message, Queue.delete_message = _add, _delete
    queue: Any = Queue
    queue.quiet_until_ms, queue.quiet_since = 0.0, -1
    queue.messages = property(_receivable)
    for name, count in _moto_counts.items():
        setattr(Queue, f"approximate_number_of_messages{name}", property(_roughly(name, count.fget)))
    models: Any = importlib.import_module("moto.sqs.models")
    models.unix_time = _seconds
    models.unix_time_millis = _milliseconds


def _message_through(weather: Weather) -> Callable[..., None]:
    def create(self: Any, *arguments: Any, **named: Any) -> None:
        """Set SenderId to the caller of SendMessage; for an instance, its role's id and its own (aws-behaviour 3.24).

        In bad weather the message is late, and others overtake it.
        """
        _moto_message(self, *arguments, **named)
        self.sender_id, self.kept_for = credentials.caller(), admission.served()
        draw = weather.draw("messages", "delay", _sender())
        if draw and draw.happens(_LATE):
            self.delayed_until = (time.time() + draw.seconds(0, _LATE_S)) * _MS

    return create


def _send_through(weather: Weather) -> Callable[..., Message]:
    def send(self: SQSBackend, queue_name: str, *arguments: Any, **named: Any) -> Message:
        """Send a message, in bad weather twice: SQS delivers at least once."""
        draw = weather.draw("messages", "copies", _sender())
        if draw and draw.happens(_TWICE):
            _moto_send(self, queue_name, *arguments, **named)
            weather.struck("messages", f"a message from {_sender()} comes twice")
        return _moto_send(self, queue_name, *arguments, **named)

    return send


def _sender() -> str:
    """Return the caller's own part of its user id: an instance, a function, or the account."""
    return credentials.caller().rpartition(":")[2]


def _is_kept(self: SQSBackend, queue_name: str, message: Message) -> bool:
    """Whether a message is still retained. moto computes all of the queue's attributes for this, 30 ms per message."""
    queue: Any = self.get_queue(queue_name)
    return queue.message_retention_period + int(message.sent_timestamp or 0) / _MS > time.time()


def _seconds(moment: datetime | None = None) -> float:
    return utils.unix_time(moment) if moment else time.time()


def _milliseconds(moment: datetime | None = None) -> float:
    return _seconds(moment) * _MS


class _Changes:
    """How often the visibility of any message has changed."""

    count = 0


def _change_visibility(self: Message, visibility_timeout: int) -> None:
    _moto_change_visibility(self, visibility_timeout)
    _Changes.count += 1


def _mark_received(self: Message, visibility_timeout: int | None = None) -> None:
    """Keep only the last handles, however often a message is received."""
    _moto_mark_received(self, visibility_timeout)
    del self._old_receipt_handles[:-_MOST_HANDLES]


def _receivable(self: Any) -> list[Message]:
    """Return the messages that may be received now. Once there are none, don't look again before there may be one."""
    with self._messages_lock:
        now_ms, changes = time.time() * _MS, _Changes.count
        if self.quiet_since == changes and now_ms < self.quiet_until_ms:
            return []
        found = [one for one in self._messages if one.visible_at < now_ms and one.delayed_until <= now_ms]
        first_ms = 0.0 if found else min(map(_ready_ms, self._messages), default=float("inf"))
        self.quiet_until_ms, self.quiet_since = first_ms, changes
        return found


def _ready_ms(message: Message) -> float:
    return max(message.visible_at, message.delayed_until)


def _add(self: Any, message: Message) -> None:
    """Add a message, before anyone can conclude that there is none."""
    with self._messages_lock:
        self.quiet_until_ms = min(self.quiet_until_ms, _ready_ms(message))
        _moto_add(self, message)


def _delete(self: Queue, receipt_handle: str) -> None:
    """Delete a message; not all handles of deleted ones are remembered for ever."""
    _moto_delete(self, receipt_handle)
    if len(self.deleted_messages) > _MOST_DELETED:
        self.deleted_messages = set()


def _roughly(name: str, count: Callable[[Any], int]) -> Callable[[Any], int]:
    """Count again at most once a second while there are many messages; moto counts three times for each one sent."""

    def counted(self: Any) -> int:
        if len(self._messages) <= _EXACT:
            return count(self)
        at_s, number = self.__dict__.get(f"counted{name}", (0.0, 0))
        if time.monotonic() >= at_s + _COUNT_EVERY_S:
            number = count(self)
            self.__dict__[f"counted{name}"] = time.monotonic(), number
        return number

    return counted
