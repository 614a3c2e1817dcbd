"""SQS as AWS has it: each message carries its sender, and giving one takes no longer the more there are.

moto names one sender for all messages, and counts all of them, with slow clocks, for each one that it gives.
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
    """Replaces the sender of a message, and what moto asks for each message of a queue, several times a call."""
    Message.__init__ = _signed
    SQSBackend.is_message_valid_based_on_retention_period = _is_kept
    models: Any = importlib.import_module("moto.sqs.models")
    models.unix_time = _seconds
    models.unix_time_millis = _milliseconds


def _signed(self: Message, *arguments: Any, **named: Any) -> None:
    """SenderId is who called SendMessage: of an instance, its role's id and its own (docs/aws-behaviour.md 3.24)."""
    _moto_message(self, *arguments, **named)
    self.sender_id = credentials.caller()


def _is_kept(self: SQSBackend, queue_name: str, message: Message) -> bool:
    """moto makes all attributes of the queue for it, three times over: 30 ms a message where a hundred wait."""
    queue: Any = self.get_queue(queue_name)
    return queue.message_retention_period + int(message.sent_timestamp or 0) / _MS > time.time()


def _seconds(moment: datetime | None = None) -> float:
    return utils.unix_time(moment) if moment else time.time()


def _milliseconds(moment: datetime | None = None) -> float:
    return _seconds(moment) * _MS
