"""The command line: one file per command, with its arguments and its output."""

import sys


def main() -> None:
    """Run the command line."""
    try:
        from launcher.base import core_dumps

        core_dumps.turn_off()  # before anything else: a variable may hold a secret
        from launcher.cli import command_process
    except KeyboardInterrupt:  # no command has started
        sys.exit(130)
    command_process.main()
