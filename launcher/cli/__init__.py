"""The command line: one file per verb, with its arguments and its output."""


def main() -> None:
    """Run the command line: in a process that stands by for it, or in this one."""
    from launcher.cli import handing_over

    handing_over.hand_over()
    from launcher.cli import command_process

    command_process.main()
