"""What stacks export and import: the names, who uses them, and what follows from that."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from localcloud.cloudformation.errors import Refused
from localcloud.cloudformation.functions import refuse_import
from localcloud.cloudformation.model import Stack


@dataclass(frozen=True)
class Exports:
    """The exports of one region. `stacks()` returns all stacks; those that are gone do not count."""

    region: str
    stacks: Callable[[], Iterable[Stack]]

    def _live(self) -> list[Stack]:
        return [stack for stack in self.stacks() if stack.region == self.region and not stack.gone]

    def listed(self) -> list[dict[str, str]]:
        """Return all exports as ListExports does."""
        found = [
            {"ExportingStackId": stack.stack_id, "Name": output["ExportName"], "Value": output["OutputValue"]}
            for stack in self._live()
            for output in list(stack.outputs)
            if "ExportName" in output
        ]
        return sorted(found, key=lambda export: export["Name"])

    def value(self, name: str) -> str:
        """Return the value of Fn::ImportValue. Raises Refused for a name that nobody exports."""
        for export in self.listed():
            if export["Name"] == name:
                return export["Value"]
        return refuse_import(name)

    def importers(self, name: str) -> list[str]:
        """Return the names of the stacks that import this name."""
        return [stack.name for stack in self._live() if name in stack.imports]

    def check(self, stack: Stack, outputs: Iterable[dict[str, str]]) -> None:
        """Raise Refused if a stack may not have these outputs instead of those that it has."""
        wanted = {output["ExportName"]: output["OutputValue"] for output in outputs if "ExportName" in output}
        for export in self.listed():
            if export["ExportingStackId"] != stack.stack_id and export["Name"] in wanted:
                owner = export["ExportingStackId"].split("/")[1]
                raise Refused(f"Export with name {export['Name']} is already exported by stack {owner}")
        for output in stack.outputs:
            name = output.get("ExportName", "")
            if name and name not in wanted:
                self._require_unused(name, "deleted")
            elif name and wanted[name] != output["OutputValue"]:
                self._require_unused(name, "updated")

    def use_of(self, stack: Stack) -> str:
        """Return why a stack can't be deleted (docs/aws-behaviour.md 1.46); "" if it can."""
        names = [output["ExportName"] for output in stack.outputs if "ExportName" in output]
        return next((used for name in names if (used := self._use(name, "deleted"))), "")

    def _require_unused(self, name: str, doing: str) -> None:
        used = self._use(name, doing)
        if used:
            raise Refused(used)

    def _use(self, name: str, doing: str) -> str:
        users = self.importers(name)
        return f"Export {name} cannot be {doing} as it is in use by {' and '.join(sorted(users))}" if users else ""
