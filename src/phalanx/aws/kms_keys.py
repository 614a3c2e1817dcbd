"""The KMS key that a spec names: the key behind an alias, and whether its policy lets in those who are to use it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phalanx.errors import CloudError, SpecError
from phalanx.plan.facts import KmsKey

if TYPE_CHECKING:
    from phalanx.aws.aws import Aws
    from phalanx.spec.spec import ClusterSpec


def find(api: Aws, spec: ClusterSpec) -> KmsKey | None:
    """Return the key. Raises SpecError for one that can't encrypt, or whose policy and grants lack somebody."""
    if not spec.kms_key:
        return None
    found = api.exists("kms", "describe_key", KeyId=spec.kms_key)
    if found is None:
        raise SpecError(f"kms_key: there is no key {spec.kms_key}", "`aws kms list-aliases` lists them.", code="no-key")
    key = found["KeyMetadata"]
    if (key["KeyState"], key.get("KeySpec", "SYMMETRIC_DEFAULT")) != ("Enabled", "SYMMETRIC_DEFAULT"):
        raise SpecError(
            f"kms_key: {spec.kms_key} is {key['KeyState']}, of type {key.get('KeySpec')}",
            "It must be enabled and symmetric.",
            code="key-unsuited",
        )
    try:
        allowed = may_use(api, key["Arn"])
    except CloudError as error:
        return KmsKey(key["Arn"], error.message)
    account = api.call("sts", "get_caller_identity")["Account"]
    users = KmsKey(key["Arn"]).users(spec.region, account)
    missing = [f"{one} ({what}): {actions}" for one, (actions, what) in users.items() if one not in allowed]
    if missing:
        raise SpecError(
            "\n".join(["kms_key: neither the key's policy nor a grant lets in all who are to use it:", *missing]),
            "Add a statement for each to the key's policy: "
            "https://docs.aws.amazon.com/kms/latest/developerguide/key-policy-modifying.html",
            code="key-unsuited",
        )
    return KmsKey(key["Arn"])


def may_use(api: Aws, key: str) -> str:
    """Return the texts of a key's policy and grants, which name who may use it. Raises CloudError."""
    grants = [one.get("GranteePrincipal", "") for one in api.pages("kms", "list_grants", "Grants", KeyId=key)]
    policy = api.call("kms", "get_key_policy", KeyId=key, PolicyName="default")["Policy"]
    return "\n".join([*grants, policy])
