"""A click group that imports a command's module only when the command is run."""

# ruff: noqa: ARG002 - click calls these methods with a context, needed or not

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

Sections = Mapping[str, Mapping[str, tuple[str, str]]]


def of_other_tools(kind: str) -> Mapping[str, str]:
    """Return phalanx's own words for other tools' `commands` or `options`."""
    from phalanx.data import table  # here, because only a mistake needs it

    return table("other_tools")[kind]


class LazyGroup(click.Group):
    """Commands by section: name → (module, one-line help). The module's attribute `command` is the click command."""

    def __init__(self, *arguments: Any, sections: Sections, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.sections = sections
        self._modules = {name: entry for section in sections.values() for name, entry in section.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._modules:
            return None
        return importlib.import_module(self._modules[cmd_name][0]).command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """`help COMMAND` is `COMMAND --help`."""
        if args[:1] == ["help"]:
            args = [*args[1:], "--help"]
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self._modules and not name.startswith("-"):
            raise click.UsageError(f"there is no command '{name}'.{self._suggestion(name)}", ctx)
        return super().resolve_command(ctx, args)

    def _suggestion(self, name: str) -> str:
        import difflib  # here, because only a misspelled command needs it

        if ours := of_other_tools("commands").get(name):
            return f" phalanx's own is `phalanx {ours}`."
        near = difflib.get_close_matches(name, self._modules, 1)
        return f" Did you mean '{near[0]}'?" if near else ""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in self.sections.items():
            with formatter.section(title):
                formatter.write_dl([(name, line) for name, (_, line) in commands.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete names from the table, without importing every command."""
        from click.shell_completion import CompletionItem  # here, because only Tab needs it

        return [CompletionItem(n, help=h) for n, (_, h) in self._modules.items() if n.startswith(incomplete)]
