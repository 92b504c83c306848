"""The command line: one file per verb, with its arguments and its output."""

from launcher.cli.app import main

__all__ = ["main"]
