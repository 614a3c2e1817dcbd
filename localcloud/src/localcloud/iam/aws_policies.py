"""The managed policies of AWS's own, such as AmazonS3ReadOnlyAccess: moto ships their documents.

There are over a thousand of them, so they are read when somebody names the first.
"""

from __future__ import annotations

import functools
import json
from typing import Any

from moto.iam.aws_managed_policies import aws_managed_policies_data
from moto.iam.models import AWSManagedPolicy

PREFIX = "arn:aws:iam::aws:policy/"


def load(backend: Any, arn: str) -> None:
    """Add the policy with this ARN to moto's, if it is one of AWS's."""
    if not arn.startswith(PREFIX) or arn in backend.managed_policies:
        return
    name = arn.rpartition("/")[2]
    if name in _documents():
        policy = AWSManagedPolicy.from_data(name, backend.account_id, backend.region_name, _documents()[name])
        backend.managed_policies[policy.arn] = policy


@functools.cache
def _documents() -> dict[str, Any]:
    return json.loads(aws_managed_policies_data)
