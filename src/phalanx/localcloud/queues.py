"""SQS of the local cloud: each message carries its sender, and receiving one takes constant time.

moto gives all messages the same sender, and looks at all of them, with slow clocks, whenever it delivers one.
"""

from __future__ import annotations

import importlib
import time
from datetime import datetime
from typing import Any

from moto.core import utils
from moto.sqs.models import Message, SQSBackend

from phalanx.localcloud.context import Context
from phalanx.localcloud.iam import credentials

PATCHED = (
    "moto.sqs.models.SQSBackend.is_message_valid_based_on_retention_period",
    "moto.sqs.models.unix_time",
    "moto.sqs.models.unix_time_millis",
    "moto.sqs.models.Message.__init__",
)

_MS = 1000
_moto_message = Message.__init__


def install(_context: Context) -> None:
    """Replace the sender of a message, and the checks that moto makes for each message, several times per call."""
    Message.__init__ = _with_sender
    SQSBackend.is_message_valid_based_on_retention_period = _is_kept
    models: Any = importlib.import_module("moto.sqs.models")
    models.unix_time = _seconds
    models.unix_time_millis = _milliseconds


def _with_sender(self: Message, *arguments: Any, **named: Any) -> None:
    """Set SenderId to the caller of SendMessage; for an instance, its role's id and its own (aws-behaviour 3.24)."""
    _moto_message(self, *arguments, **named)
    self.sender_id = credentials.caller()


def _is_kept(self: SQSBackend, queue_name: str, message: Message) -> bool:
    """Whether a message is still retained. moto computes all of the queue's attributes for this, 30 ms per message."""
    queue: Any = self.get_queue(queue_name)
    return queue.message_retention_period + int(message.sent_timestamp or 0) / _MS > time.time()


def _seconds(moment: datetime | None = None) -> float:
    return utils.unix_time(moment) if moment else time.time()


def _milliseconds(moment: datetime | None = None) -> float:
    return _seconds(moment) * _MS
