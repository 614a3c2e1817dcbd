"""SQS of the local cloud: each message carries its sender, and receiving one takes constant time.

moto gives all messages the same sender, and looks at all of them, with slow clocks, whenever it delivers one.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

from moto.core import utils
from moto.sqs.models import Message, SQSBackend

from localcloud.context import Context
from localcloud.iam import credentials
from localcloud.weather.sky import Weather

PATCHED = (
    "moto.sqs.models.SQSBackend.is_message_valid_based_on_retention_period",
    "moto.sqs.models.unix_time",
    "moto.sqs.models.unix_time_millis",
    "moto.sqs.models.Message.__init__",
    "moto.sqs.models.SQSBackend.send_message",
)

_MS = 1000
_moto_message = Message.__init__
_moto_send = SQSBackend.send_message
# Bad weather: docs/aws-behaviour.md 11.3.
_LATE_S = 10.0
_TWICE = 0.1
_LATE = 0.3


def install(context: Context) -> None:
    """Replace the sender of a message, and the checks that moto makes for each message, several times per call."""
    Message.__init__ = _message_through(context.weather)
    SQSBackend.send_message = _send_through(context.weather)
    SQSBackend.is_message_valid_based_on_retention_period = _is_kept
    models: Any = importlib.import_module("moto.sqs.models")
    models.unix_time = _seconds
    models.unix_time_millis = _milliseconds


def _message_through(weather: Weather) -> Callable[..., None]:
    def create(self: Message, *arguments: Any, **named: Any) -> None:
        """Set SenderId to the caller of SendMessage; for an instance, its role's id and its own (aws-behaviour 3.24).

        In bad weather the message is late, and others overtake it.
        """
        _moto_message(self, *arguments, **named)
        self.sender_id = credentials.caller()
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
