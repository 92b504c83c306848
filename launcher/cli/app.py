"""The root command: the verbs, and the options of a launch when no verb is given."""

from __future__ import annotations

import copy
import os
import sys
from gc import set_threshold
from typing import Annotated, Any

import typer

from launcher import __version__, core_dumps
from launcher.cli import (
    attach,
    completing,
    cp,
    diagnose,
    execute,
    explain,
    gc,
    hosts,
    image,
    launch,
    logs,
    ls,
    metrics,
    plot,
    probe,
    profile,
    ps,
    pull,
    rerun,
    resume,
    rm,
    stop,
    sweep,
)
from launcher.cli.quick import QuickCommand, QuickGroup
from launcher.cli.say import complain
from launcher.cli.signals import Terminated, heed_sigterm
from launcher.errors import LaunchError, UsageError

DEFAULT = "run"
_OWN = ("--help", "-h", "--version", "--install-completion", "--show-completion")


class RootGroup(QuickGroup):
    """A group that runs its hidden default command when the first word is an option, or missing."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert the default command, and keep the words after `--` for it unchanged."""
        if ctx.resilient_parsing:  # a shell completes a word
            completing.let_values_complete(self)
            is_default = bool(args) and args[0].startswith("-")
            return super().parse_args(ctx, [DEFAULT, *args] if is_default else args)
        if not args or (args[0].startswith("-") and args[0] not in _OWN):
            if "--" in args:
                ctx.obj = args[args.index("--") + 1 :]
                if not ctx.obj:
                    raise UsageError("no command after --\n  example   launch --host HOST -- python train.py")
                args = args[: args.index("--")]
            args = [DEFAULT, *args]
        return super().parse_args(ctx, args)

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the root's options, and those of a launch too while a shell completes a word.

        The two options for completion get a plain default, for the reason in quick.py.
        """
        for param in self.params:
            if param.name in ("install_completion", "show_completion"):
                param.default = False
        own = super().get_params(ctx)
        return [*self._launch_options(), *own] if ctx.resilient_parsing else own

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Show the default command's options among the root's."""
        whole = copy.copy(self)
        whole.params = [*self._launch_options(), *self.params]
        QuickGroup.format_help(whole, ctx, formatter)

    def _launch_options(self) -> list[Any]:
        return [param for param in self.commands[DEFAULT].params if param.name != "stray"]


app = typer.Typer(
    cls=RootGroup,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help=launch.HELP,
)


def _print_version(value: bool) -> None:
    if value:
        print(f"launch {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


app.command(DEFAULT, hidden=True, cls=QuickCommand)(launch.launch)
app.command("ps", cls=QuickCommand)(ps.ps)
app.command("attach", cls=QuickCommand)(attach.attach)
app.command("logs", cls=QuickCommand)(logs.logs)
app.command("metrics", cls=QuickCommand)(metrics.metrics)
app.command("plot", cls=QuickCommand)(plot.plot)
app.command("stop", cls=QuickCommand)(stop.stop)
app.command("resume", cls=QuickCommand)(resume.resume)
app.command("rerun", cls=QuickCommand)(rerun.rerun)
app.command("ls", cls=QuickCommand)(ls.ls)
app.command("pull", cls=QuickCommand)(pull.pull)
app.command("cp", cls=QuickCommand)(cp.cp)
app.command("exec", cls=execute.ExecuteCommand)(execute.execute)
app.command("rm", cls=QuickCommand)(rm.rm)
app.command("gc", cls=QuickCommand)(gc.gc)
app.command("sweep", cls=QuickCommand)(sweep.sweep)
app.command("diagnose", cls=QuickCommand)(diagnose.diagnose)
app.command("explain", cls=QuickCommand)(explain.explain)
app.command("probe", cls=QuickCommand)(probe.probe)
app.command("hosts", cls=QuickCommand)(hosts.hosts)
app.add_typer(profile.app, name="profile")
app.add_typer(image.app, name="image")


_NEW_OBJECTS = 50_000
"""Objects after which Python looks for cycles. After every 700, as it does by default, costs a fifth of a walk of 10,000 files."""


def main() -> None:
    """Run the command line. A LaunchError becomes a message and its exit code; any other exception is a bug and is shown."""
    completing.forget_equals_signs()
    heed_sigterm()
    core_dumps.turn_off()
    set_threshold(_NEW_OBJECTS)
    try:
        app(prog_name="launch")
    except LaunchError as error:
        complain(str(error))
        sys.exit(error.exit_code)
    except FileNotFoundError:
        if _has_working_directory():
            raise
        complain("the current directory has been removed\n  next   cd to an existing folder")
        sys.exit(UsageError.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except Terminated:
        sys.exit(Terminated.exit_code)
    except BrokenPipeError:
        sys.stderr.close()  # the reader has closed the pipe, as `launch logs | head` does
        sys.exit(0)


def _has_working_directory() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True
