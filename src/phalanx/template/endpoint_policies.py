"""The policies of a private cluster's endpoints: only principals of its own account may call AWS through them.

A job with keys of another account could otherwise carry data there. Endpoints in an existing VPC have AWS's own policy,
because they serve others, too.
"""

from __future__ import annotations

from typing import Any

from troposphere import Ref, Sub

# No document says that the streams of logins can be bound, and without them nobody gets in (aws-behaviour 2.60).
_UNBOUND = ("ssmmessages",)
# Buckets of AWS that other principals write to, or anybody reads (docs/aws-behaviour.md 1.40, 2.61).
_SIGNALS = "cloudformation-waitcondition-${AWS::Region}"
_PACKAGES = "al2023-repos-${AWS::Region}-de612dc2"


def of(service: str) -> dict[str, Any]:
    """Return the properties of the service's endpoint that bind its use."""
    if service in _UNBOUND:
        return {}
    buckets = [_objects("s3:PutObject", _SIGNALS), _objects("s3:GetObject", _PACKAGES)] if service == "s3" else []
    return {"PolicyDocument": {"Version": "2012-10-17", "Statement": [_own(), *buckets]}}


def _own() -> dict[str, Any]:
    only = {"StringEquals": {"aws:PrincipalAccount": Ref("AWS::AccountId")}}
    return {**_allow("*", "*"), "Condition": only}


def _objects(action: str, bucket: str) -> dict[str, Any]:
    return _allow(action, Sub(f"arn:${{AWS::Partition}}:s3:::{bucket}/*"))


def _allow(action: str, resource: str | Sub) -> dict[str, Any]:
    # A gateway endpoint's policy has to name all principals, and binds them by conditions (docs/aws-behaviour.md 2.65).
    return {"Effect": "Allow", "Principal": "*", "Action": action, "Resource": resource}
