"""The IAM policies that a spec names: whether they exist, before a stack fails for one."""

from __future__ import annotations

from typing import Any, Protocol

from phalanx.aws.refusals import is_denied
from phalanx.errors import CloudError, SpecError
from phalanx.spec.spec import ClusterSpec


class Api(Protocol):
    def exists(self, service: str, operation: str, **arguments: Any) -> dict[str, Any] | None: ...


def require_policies(api: Api, spec: ClusterSpec) -> None:
    """Raise SpecError for a policy that does not exist."""
    boundary = [("permissions_boundary", spec.permissions_boundary)] if spec.permissions_boundary else []
    for key, arn in [*(("policies", arn) for arn in spec.policies or ()), *boundary]:
        if not _may_exist(api, arn):
            raise SpecError(f"{key}: there is no policy {arn}", "`aws iam list-policies` lists them.")


def _may_exist(api: Api, arn: str) -> bool:
    """Whether the policy exists; of one that the user may not look at, IAM decides when the stack is created."""
    try:
        return api.exists("iam", "get_policy", PolicyArn=arn) is not None
    except CloudError as error:
        if isinstance(error.__cause__, Exception) and is_denied(error.__cause__):
            return True
        raise
