"""IAM is eventually consistent: in bad weather a role's new policy takes effect later (docs/aws-behaviour.md 11.5)."""

from __future__ import annotations

from datetime import datetime, timedelta

from moto.iam.models import Role

from localcloud.context import Context

PATCHED = ("moto.iam.models.Role.put_policy",)

SOONEST_S, LATEST_S = 10.0, 60.0

_put_policy = Role.put_policy
_seen_from: dict[tuple[str, str], datetime] = {}


def install(context: Context) -> None:
    """Remember when each role's inline policy was put."""
    _seen_from.clear()

    def put(self: Role, policy_name: str, policy_json: str) -> None:
        is_new = policy_name not in self.policies
        _put_policy(self, policy_name, policy_json)
        draw = context.weather.draw("permissions", self.name, policy_name)
        if draw and is_new:
            delay_s = draw.seconds(SOONEST_S, LATEST_S)
            _seen_from[self.id, policy_name] = context.clock.now() + timedelta(seconds=delay_s)
            context.weather.struck("permissions", f"{policy_name} of {self.name} takes effect in {delay_s:.1f} s")

    Role.put_policy = put


def is_seen(context: Context, role_id: str, policy_name: str) -> bool:
    """Whether the policy has reached the services."""
    return _seen_from.get((role_id, policy_name), context.clock.now()) <= context.clock.now()
