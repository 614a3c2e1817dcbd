"""AWS's sentences for errors that moto words otherwise: programs compare them, and people search the web for them.

The pages and threads that quote them are named in docs/aws-behaviour.md 2.74.
"""

from __future__ import annotations

import re

_ID = r"(?:[{\[](?:'|&#x27;))?([\w.@/-]+)(?:(?:'|&#x27;)[}\]])?"
_QUOTE = r"(?:'|&apos;|&#39;|&#x27;)?"
_SENTENCES = {
    "ec2": {
        rf"VpcID {_ID} does not exist\.": r"The vpc ID '\1' does not exist",
        rf"The keypair {_QUOTE}{_ID}{_QUOTE} does not exist\.": r"The key pair '\1' does not exist",
        rf"A(lloc|ssoci)ation ID {_QUOTE}{_ID}{_QUOTE} not found\.": r"The a\1ation ID '\2' does not exist",
    },
    "iam": {
        r"Role ([\w+=,.@-]+) not found\b\.?": r"The role with name \1 cannot be found.",
        r"Instance profile ([\w+=,.@-]+) not found\b\.?": r"Instance Profile \1 cannot be found.",
        r"Group ([\w+=,.@-]+) not found\b\.?": r"The group with name \1 cannot be found.",
        r"Policy Document ([\w+=,.@-]+) not attached to role [\w+=,.@-]+": (
            r"The role policy with name \1 cannot be found."
        ),
    },
    "sqs": {
        r"An error occurred \(\w+\) when calling the \w+ operation: ": "",
        r"Reason: must be between": "Reason: Must be between",
        r"Reason: must be (?:&lt;|<)= 0 and (?:&gt;|>)= 20 if": "Reason: Must be >= 0 and <= 20, if",
    },
    "ssm": {r"Parameter [^\s\"]+ not found\.": ""},
}


def worded(service: str, body: bytes) -> bytes:
    """Return the answer of an error with AWS's sentence, if moto's is another."""
    return reworded(body.decode("utf-8", "surrogateescape"), service).encode("utf-8", "surrogateescape")


def reworded(text: str, *services: str) -> str:
    """Return a sentence of one of these services, or of any of EC2 and IAM, in AWS's words."""
    for service in services or ("ec2", "iam"):
        for pattern, sentence in _SENTENCES.get(service, {}).items():
            text = re.sub(pattern, sentence, text)
    return text
