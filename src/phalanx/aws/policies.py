"""Policies of IAM: whether those that a spec names exist, and the removal of those that keep a role."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phalanx.aws.refusals import is_denied
from phalanx.errors import CloudError, SpecError

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws
    from phalanx.spec.spec import ClusterSpec


def require_policies(api: Aws, spec: ClusterSpec) -> None:
    """Raise SpecError for a policy that does not exist."""
    boundary = [("permissions_boundary", spec.permissions_boundary)] if spec.permissions_boundary else []
    for key, arn in [*(("policies", arn) for arn in spec.policies or ()), *boundary]:
        if not _may_exist(api, arn):
            raise SpecError(f"{key}: there is no policy {arn}", "`aws iam list-policies` lists them.", code="no-policy")


def _may_exist(api: Aws, arn: str) -> bool:
    """Whether the policy exists; of one that the user may not look at, IAM decides when the stack is created."""
    try:
        return api.exists("iam", "get_policy", PolicyArn=arn) is not None
    except CloudError as error:
        if is_denied(error.__cause__):
            return True
        raise


def remove(api: Aws, role: str) -> tuple[str, ...]:
    """Detach the role's managed policies and delete its inline ones; return what was done, such as "detached X"."""
    attached = (api.exists("iam", "list_attached_role_policies", RoleName=role) or {}).get("AttachedPolicies", [])
    for policy in attached:
        api.exists("iam", "detach_role_policy", RoleName=role, PolicyArn=policy["PolicyArn"])
    inline = (api.exists("iam", "list_role_policies", RoleName=role) or {}).get("PolicyNames", [])
    for name in inline:
        api.exists("iam", "delete_role_policy", RoleName=role, PolicyName=name)
    return (*(f"detached {policy['PolicyName']}" for policy in attached), *(f"deleted {name}" for name in inline))


def delete_role(api: Aws, role: str) -> None:
    """Delete the role with its policies; no error when it is gone."""
    remove(api, role)
    api.exists("iam", "delete_role", RoleName=role)
