"""The KMS key that a spec names: the key behind an alias, and whether its policy lets in those who are to use it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from phalanx.aws.refusals import is_denied
from phalanx.errors import CloudError, SpecError
from phalanx.plan.facts import KmsKey

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws
    from phalanx.spec.spec import ClusterSpec

ANYBODY = "*"
# Services' names end otherwise in other partitions.
_DOMAIN = ".amazonaws."


def find(api: Aws, spec: ClusterSpec) -> KmsKey | None:
    """Return the key. Raises SpecError for one that can't encrypt, or that certainly lacks somebody who must use it."""
    if not spec.kms_key:
        return None
    try:
        arn = _usable(api, spec.kms_key)
        named = let_in(api, arn)
    except CloudError as error:
        # Without its ARN, nothing can be encrypted with the key behind an alias.
        if ":alias/" in spec.kms_key or not is_denied(error.__cause__):
            raise
        return KmsKey(spec.kms_key, error.message)
    account = api.call("sts", "get_caller_identity")["Account"]
    users = KmsKey(arn).users(spec.region, account)
    missing = [f"{one} ({what}): {actions}" for one, (actions, what) in users.items() if _name(one) not in named]
    if missing and ANYBODY in named:
        return KmsKey(arn, "a statement of its policy may be for anybody")
    if missing:
        raise SpecError(
            "\n".join(["kms_key: neither the key's policy nor a grant names all who must use the key:", *missing]),
            "Add a statement for each to the key's policy: "
            "https://docs.aws.amazon.com/kms/latest/developerguide/key-policy-modifying.html",
            code="key-unsuited",
        )
    return KmsKey(arn)


def _usable(api: Aws, name: str) -> str:
    """Return the ARN of a key by its ARN or an alias's. Raises SpecError for one that can't encrypt."""
    found = api.exists("kms", "describe_key", KeyId=name)
    if found is None:
        raise SpecError(f"kms_key: there is no key {name}", "`aws kms list-aliases` lists them.", code="no-key")
    key = found["KeyMetadata"]
    state, kind = key["KeyState"], key.get("KeySpec", "SYMMETRIC_DEFAULT")
    if (state, kind) != ("Enabled", "SYMMETRIC_DEFAULT"):
        text, hint = f"{name} is {state}, of type {kind}", "It must be enabled and symmetric."
    elif key.get("KeyManager") == "AWS":
        text, hint = f"{name} is AWS's own key, whose policy can't be changed", "Make a key of your own."
    else:
        return key["Arn"]
    raise SpecError(f"kms_key: {text}", hint, code="key-unsuited")


def let_in(api: Aws, key: str) -> frozenset[str]:
    """Return whom a key's grants, and the statements of its policy that allow something, name.

    Services are without their domains. ANYBODY is there if a statement is for all, or for all but some, or if the
    policy can't be read. Who is left to IAM, by a statement for an account, is not there. Raises CloudError.
    """
    granted = {one.get("GranteePrincipal", "") for one in api.pages("kms", "list_grants", "Grants", KeyId=key)}
    policy = api.call("kms", "get_key_policy", KeyId=key, PolicyName="default")["Policy"]
    try:
        return frozenset(map(_name, {*granted, *_allowed(json.loads(policy))}))
    except (ValueError, AttributeError, TypeError):
        return frozenset({ANYBODY})


def _allowed(policy: Any) -> Iterator[str]:
    statements = policy.get("Statement", [])
    for one in statements if isinstance(statements, list) else [statements]:
        # Without it, there is a NotPrincipal.
        principal = one.get("Principal", ANYBODY)
        for names in principal.values() if isinstance(principal, dict) else [principal]:
            if one.get("Effect") == "Allow":
                yield from names if isinstance(names, list) else [names]


def _name(principal: str) -> str:
    return principal if principal.startswith("arn:") else principal.partition(_DOMAIN)[0]
