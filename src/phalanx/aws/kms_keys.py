"""The KMS key that a spec names: the key behind an alias, and whether its policy lets in those who are to use it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
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
# Without these, nothing can be encrypted or read; the rest is AWS's advice (docs/aws-behaviour.md 6.7).
_NEEDED = ("Decrypt", "GenerateDataKey", "CreateGrant")


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
    missing = [
        f"{one} ({what}): {actions}" for one, (actions, what) in users.items() if lacks(named, one, actions.split())
    ]
    if missing and ANYBODY in named:
        return KmsKey(arn, "a statement of its policy may be for anybody")
    if missing:
        raise SpecError(
            "\n".join(
                ["kms_key: the key's policy and grants do not allow all that must be done with the key:", *missing]
            ),
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


def let_in(api: Aws, key: str) -> dict[str, set[str]]:
    """Return whom a key's grants, and the statements of its policy that allow something, name, with the actions.

    Services are without their domains, and actions are patterns in lower case. ANYBODY is there if a statement is
    for all, or for all but some, or if the policy can't be read. Who is left to IAM, by a statement for an account, is
    not there. Raises CloudError.
    """
    found: dict[str, set[str]] = {}
    for one in api.pages("kms", "list_grants", "Grants", KeyId=key):
        actions = {f"kms:{operation.lower()}" for operation in one.get("Operations", ["*"])}
        found.setdefault(_name(one.get("GranteePrincipal", "")), set()).update(actions)
    policy = api.call("kms", "get_key_policy", KeyId=key, PolicyName="default")["Policy"]
    try:
        for name, actions in _allowed(json.loads(policy)):
            found.setdefault(_name(name), set()).update(actions)
    except (ValueError, AttributeError, TypeError):
        return {ANYBODY: {"*"}}
    return found


def lacks(named: Mapping[str, set[str]], who: str, actions: Iterable[str]) -> bool:
    """Whether what `let_in` returned surely lacks what somebody needs who does these actions with the key.

    Only actions count without which nothing can be encrypted.
    """
    allowed = named.get(_name(who), set())
    needed = (one.lower() for one in actions if one.partition(":")[2].rstrip("*") in _NEEDED)
    return not all(any(fnmatchcase(one.rstrip("*"), two) or fnmatchcase(two, one) for two in allowed) for one in needed)


def _allowed(policy: Any) -> Iterator[tuple[str, set[str]]]:
    statements = policy.get("Statement", [])
    for one in statements if isinstance(statements, list) else [statements]:
        # Without it, there is a NotPrincipal.
        principal = one.get("Principal", ANYBODY)
        # Without it, there is a NotAction.
        given = one.get("Action", "*")
        actions = {str(action).lower() for action in ([given] if isinstance(given, str) else given)}
        for names in principal.values() if isinstance(principal, dict) else [principal]:
            if one.get("Effect") == "Allow":
                yield from ((name, actions) for name in (names if isinstance(names, list) else [names]))


def _name(principal: str) -> str:
    return principal if principal.startswith("arn:") else principal.partition(_DOMAIN)[0]
