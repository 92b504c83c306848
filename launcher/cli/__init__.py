"""The command line: one file a verb, nothing but arguments and rendering."""

from launcher.cli.app import main

__all__ = ["main"]
