"""Stage 1 of the agent, which fits into user data: fetch the rest, verify it, and write it beside this file.

The head reads it from the parameters of its stack (one call in a cluster's life) and hands it on through the table,
which answers any number of workers. The user's boot script comes along. User data carries the SHA-256 of both: nobody
who can change the table, or these parameters, can make a node run other code.
"""

from __future__ import annotations

import base64
import hashlib
import lzma
import os
import re
import time

from phalanx.node import files, wire
from phalanx.node.aws_client import Aws, AwsError
from phalanx.node.metadata import Metadata
from phalanx.node.settings import Settings

_DIRECTORY = os.path.dirname(os.path.abspath(__file__))
# Of the node's timeout, so that the reason is reported before the node counts as missing.
_PATIENCE = 0.9

SCRIPT = f"{_DIRECTORY}/boot-script"
"""The path of the user's boot script, which is empty if there is none."""

HEAD = f"{_DIRECTORY}/head"
"""The path of the address of the head that handed the agent on to this worker."""


def complete(settings: Settings, metadata: Metadata) -> None:
    """Fetch stage 2 unless it is here. Raises AwsError if that fails for most of the node's timeout."""
    mark = f"{_DIRECTORY}/complete"
    if files.read(mark) == settings.digest:
        return
    aws = Aws(settings.region, settings.domain, metadata.credentials, settings.patience)
    packed = _insist(aws, settings, metadata)
    found = hashlib.sha256(packed.encode()).hexdigest()
    if found != settings.digest:
        raise OSError(f"the agent's rest has SHA-256 {found}, and the user data wants {settings.digest}")
    stage_2, _, script = packed.partition(":")
    # Also without a script: the node of which the image was made may have had one.
    with open(SCRIPT, "wb") as file:
        os.fchmod(file.fileno(), 0o700)
        if script:
            file.write(lzma.decompress(base64.b64decode(script)))
    _unpack(base64.b64decode(settings.agent) + base64.b64decode(stage_2))
    files.write(mark, settings.digest)


def _unpack(stream: bytes) -> None:
    """Write all modules of an LZMA stream of `code NUL name NUL text NUL name NUL text`."""
    parts = lzma.decompress(stream).decode().split("\0")
    for name, text in zip(parts[1::2], parts[2::2]):  # noqa: B905 (Python 3.9)
        with open(f"{_DIRECTORY}/{name}.py", "w", encoding="utf-8") as file:
            file.write(text)


def _insist(aws: Aws, settings: Settings, metadata: Metadata) -> str:
    """Read it, again and again: a new machine may have no way out, no credentials and no rights for minutes."""
    end = time.monotonic() + _PATIENCE * settings.node_timeout_s
    count = 0
    while True:
        try:
            if settings.head:
                return _from_stack(aws, settings, metadata.identity().address)
            return _from_table(aws, settings)
        except (OSError, AwsError) as error:
            if time.monotonic() > end:
                raise AwsError("the rest of the agent", "", str(error)) from error
            print(f"phalanx: the rest of the agent: {error}; trying again", flush=True)
        wire.pause(count, settings.patience.pause_s)
        count += 1


def _from_stack(aws: Aws, settings: Settings, address: str) -> str:
    """Join the values of the stack's parameters Agent01, Agent02 and so on, and hand them on through the table.

    The head's own address comes along, so that workers need not ask for it in another call.
    """
    from xml.etree import ElementTree  # 10 ms, which only the head needs

    answer = aws.query("cloudformation", "2010-05-15", "DescribeStacks", {"StackName": settings.stack_id})
    given = ElementTree.fromstring(answer).iterfind(".//{*}Parameters/{*}member")
    texts = {one.findtext("{*}ParameterKey", ""): one.findtext("{*}ParameterValue", "") for one in given}
    packed = "".join(texts[key] for key in sorted(texts) if re.fullmatch("Agent[0-9]+", key))
    item = {"item": {"S": "agent"}, "packed": {"S": packed}, "head": {"S": address}}
    aws.json("dynamodb", "DynamoDB_20120810.PutItem", {"TableName": settings.table, "Item": item})
    return packed


def _from_table(aws: Aws, settings: Settings) -> str:
    """Read it from the table. The head writes it before it requests workers, so a wait is rare."""
    wish = {"TableName": settings.table, "Key": {"item": {"S": "agent"}}}
    item = aws.json("dynamodb", "DynamoDB_20120810.GetItem", wish).get("Item")
    if not item:
        raise OSError("the head has put none into the table yet")
    files.write(HEAD, item["head"]["S"])
    return item["packed"]["S"]
