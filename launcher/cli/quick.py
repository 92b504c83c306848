"""Commands that start quickly: typer loads pydantic (50 ms) for an unset `--help` unless its default is a bool."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup


class QuickCommand(TyperCommand):
    """A verb."""

    def get_help_option(self, ctx: Any) -> Any:
        """Return the help option with a plain default."""
        return _with_default(super().get_help_option(ctx))


class QuickGroup(TyperGroup):
    """A group of verbs."""

    def get_help_option(self, ctx: Any) -> Any:
        """Return the help option with a plain default."""
        return _with_default(super().get_help_option(ctx))


def _with_default(option: Any) -> Any:
    if option is not None:
        option.default = False
    return option
