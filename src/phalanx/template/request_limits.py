"""Limits of CloudFormation and IAM that a valid spec can exceed. The refusal names the key that takes the most."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from phalanx.errors import SpecError
from phalanx.plan.plan import Plan
from phalanx.spec.spec import ClusterSpec

LIMIT_BYTES = 51_200
"""CloudFormation's limit for a template inside a request (docs/aws-behaviour.md 1.14)."""
LIMIT_IN_S3_BYTES = 1_000_000
"""And for one that a request names (docs/aws-behaviour.md 1.26)."""

_POLICY_CHARACTERS = 10_240
# The longest of the partitions' names, which CloudFormation fills in.
_PARTITION = "aws-us-gov"


def is_large(document: str) -> bool:
    """Whether the document is too large for a request."""
    return len(document.encode()) > LIMIT_BYTES


def refuse_large_document(plan: Plan, document: str, size_of: Callable[[Plan], int]) -> None:
    """Raise SpecError for a document that CloudFormation does not take, in a request or from the spec's bucket.

    `size_of` measures that of another plan.
    """
    size, by_bucket = len(document.encode()), plan.spec.bucket is not None
    limit = LIMIT_IN_S3_BYTES if by_bucket else LIMIT_BYTES
    if size <= limit:
        return
    parts = {key: size - size_of(replace(plan, spec=spec)) for key, spec in _without(plan.spec).items()}
    key = max(parts, key=lambda one: parts[one])
    hint = "Shorten it, or remove some of it."
    if size <= LIMIT_IN_S3_BYTES:
        hint += (
            f" Or write `bucket: NAME`, your own private, encrypted bucket in {plan.spec.region}: `up` then sends "
            "the document that way. AWS's console takes 1 MB, too: `phalanx template` prints the document for it."
        )
    raise SpecError(
        f"{key}: the stack's document has {size:,} bytes, and CloudFormation takes {limit:,} "
        f"{'from S3' if by_bucket else 'in a request'}; {parts[key]:,} of them are for `{key}`",
        hint,
        code="document-too-large",
    )


def _without(spec: ClusterSpec) -> dict[str, ClusterSpec]:
    """Return the spec without each of the keys whose values can be long."""
    less: dict[str, dict[str, Any]] = {
        "tags": {"tags": None},
        "data": {"data": None, "lustre": None},
        "policies": {"policies": None},
        "ssh_from": {"ssh_from": spec.ssh_sources[:1] or ""},
    }
    return {key: replace(spec, **fields) for key, fields in less.items()}


def refuse_large_policy(statements: list[dict[str, Any]]) -> None:
    """Raise SpecError if the role of jobs would have a larger inline policy than IAM takes (aws-behaviour 12.1)."""
    text = json.dumps(statements, default=_filled_in, separators=(",", ":"))
    size = len('{"Version":"2012-10-17","Statement":}') + len(text)
    if size > _POLICY_CHARACTERS:
        raise SpecError(
            f"data: the policy of jobs has {size:,} characters, and IAM takes {_POLICY_CHARACTERS:,}",
            "Shorten the prefixes, or name one above several of them.",
            code="document-too-large",
        )


def _filled_in(reference: Any) -> str:
    """Return a Fn::Sub as IAM sees it. Statements about data contain no other reference."""
    return reference.data["Fn::Sub"].replace("${AWS::Partition}", _PARTITION)
