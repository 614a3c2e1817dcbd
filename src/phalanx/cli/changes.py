"""Show what a changed phalanx.yaml changes of a cluster that is there, and ask before it is done."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from phalanx.cli.console import confirm, note, require_terminal

if TYPE_CHECKING:
    from phalanx.aws.model import StackChange
    from phalanx.cluster.update import Proposal

_GROUP = "AWS::AutoScaling::AutoScalingGroup"
_HAPPENS = {
    ("Add", ""): "added",
    ("Remove", ""): "removed",
    ("Modify", "True"): "replaced",
    ("Modify", "Conditional"): "changed in place; replaced only if what it refers to is",
    ("Modify", "False"): "changed in place",
}


class Asking:
    """Asks whether to change a cluster. `proposal` is what was shown, None before."""

    def __init__(self, yes: bool, paused: Callable[[], Any]) -> None:
        self._yes, self._paused = yes, paused
        self.proposal: Proposal | None = None

    def __call__(self, proposal: Proposal) -> None:
        """Show the proposal, and raise click.Abort unless the user agrees."""
        self.proposal = proposal
        with self._paused():
            for line in _lines(proposal):
                note(line)
            if not self._yes:
                require_terminal()
                confirm(f"Change cluster {proposal.cluster}?")

    def as_json(self) -> dict[str, Any]:
        """Return what was changed, for JSON."""
        if self.proposal is None:
            return {"settings": {}, "resources": []}
        return {
            "settings": {_key(key): {"before": a, "now": b} for key, (a, b) in self.proposal.settings.items()},
            "resources": [
                {"name": one.logical_id, "type": one.resource_type, "action": one.action, "replaced": one.replacement}
                for one in self.proposal.resources
            ],
        }


def _lines(proposal: Proposal) -> list[str]:
    rows = [
        (_key(key), f"{_shown(key, before)} → {_shown(key, now)}") for key, (before, now) in proposal.settings.items()
    ]
    lines = [f"Cluster {proposal.cluster} is there with other settings:", *_aligned(rows)]
    if not proposal.resources:
        return [*lines, "Nothing of its stack changes."]
    shown = [(one.logical_id, _happens(one)) for one in proposal.resources if one.scope != ("Tags",)]
    retagged = len(proposal.resources) - len(shown)
    tags = [(f"{retagged} others", "their tags are changed")] if retagged else []
    return [*lines, "What changes of its stack:", *_aligned([*shown, *tags])]


def _happens(change: StackChange) -> str:
    """Say what happens to a resource. Without a policy to replace them, a group's machines stay."""
    if change.resource_type == _GROUP and change.replacement == "Conditional":
        return "changed in place; its machines stay as they are"
    return _HAPPENS.get((change.action, change.replacement), change.action)


def _aligned(rows: list[tuple[str, str]]) -> list[str]:
    width = max((len(name) for name, _ in rows), default=0)
    return [f"  {name:<{width}}  {what}" for name, what in rows]


def _key(field: str) -> str:
    """Return the key of phalanx.yaml for a field of the spec."""
    return field.removesuffix("_s")


def _shown(field: str, value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}: {one}" for name, one in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    if value is None:
        return "none"
    return f"{value} s" if field.endswith("_s") else str(value)
