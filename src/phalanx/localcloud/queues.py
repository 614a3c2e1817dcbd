"""SQS in time that does not grow with the queue: moto counts all messages, with slow clocks, for each one it gives."""

from __future__ import annotations

import importlib
import time
from datetime import datetime
from typing import Any

from moto.core import utils
from moto.sqs.models import Message, SQSBackend

from phalanx.localcloud.context import Context

PATCHED = (
    "moto.sqs.models.SQSBackend.is_message_valid_based_on_retention_period",
    "moto.sqs.models.unix_time",
    "moto.sqs.models.unix_time_millis",
)

_MS = 1000


def install(_context: Context) -> None:
    """Replaces what moto asks for each message of a queue, several times a call."""
    SQSBackend.is_message_valid_based_on_retention_period = _is_kept
    models: Any = importlib.import_module("moto.sqs.models")
    models.unix_time = _seconds
    models.unix_time_millis = _milliseconds


def _is_kept(self: SQSBackend, queue_name: str, message: Message) -> bool:
    """moto makes all attributes of the queue for it, three times over: 30 ms a message where a hundred wait."""
    queue: Any = self.get_queue(queue_name)
    return queue.message_retention_period + int(message.sent_timestamp or 0) / _MS > time.time()


def _seconds(moment: datetime | None = None) -> float:
    return utils.unix_time(moment) if moment else time.time()


def _milliseconds(moment: datetime | None = None) -> float:
    return _seconds(moment) * _MS
