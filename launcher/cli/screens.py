"""The view that fits standard output: a live terminal, plain lines, or JSON."""

from __future__ import annotations

from rich.console import Console

from launcher.cli.json_view import JsonView
from launcher.cli.plain_view import PlainView
from launcher.cli.terminal_view import TerminalView
from launcher.runs.view import View


def make_view(as_json_lines: bool) -> View:
    """Return the JSON view if requested, the live view in a terminal, else the plain one."""
    if as_json_lines:
        return JsonView()
    console = Console(highlight=False)
    return TerminalView(console) if console.is_terminal else PlainView()
