"""The root command: all commands, and the options of a launch when no command is named."""

from __future__ import annotations

import copy
import errno
import importlib
import os
import sys
from collections.abc import Container, Sequence
from functools import cache
from typing import Annotated, Any

import typer

from launcher.base import question
from launcher.base.client_files import UnreadableError
from launcher.cli.completion.completing import let_values_complete
from launcher.cli.completion.shell_answers import rejoin_words, use_our_scripts
from launcher.cli.output.asking import agrees
from launcher.cli.output.say import complain
from launcher.cli.output.streams import prepare
from launcher.cli.quick import QuickCommand, QuickGroup, WrongWordsError, tell_wrong_words
from launcher.cli.signals import Terminated, heed_sigterm
from launcher.cli.text.rental_warnings import rental_warnings
from launcher.errors import LaunchError, UsageError

DEFAULT = "run"
WIDEST = 1000
"""Maximum width of the help. It has the width of the terminal, or 80 cells in a pipe."""
_ABOUT_ALL = ("--help", "-h", "help", "--version")
_OWN = ("--help", "-h", "--version", "--install-completion", "--show-completion")


class RootGroup(QuickGroup):
    """A group that runs its default command when the first word is an option, or missing."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert the default command, and keep the words after `--` for it unchanged."""
        if ctx.resilient_parsing:  # a shell asks for completions
            let_values_complete(self)
            is_default = bool(args) and args[0].startswith("-")
            return super().parse_args(ctx, [DEFAULT, *args] if is_default else args)
        if args[:1] == ["help"]:
            args = [*args[1:], "--help"] if not args[1:] or args[1] in self.commands else args[1:]
        if not args or args[0] == DEFAULT or (args[0].startswith("-") and args[0] not in _OWN):
            if "--" in args:
                ctx.obj = args[args.index("--") + 1 :]
                if not ctx.obj:
                    raise UsageError("no command after --\n  example   launch --host HOST -- python train.py")
                args = args[: args.index("--")]
            args = args if args[:1] == [DEFAULT] else [DEFAULT, *args]
        elif not args[0].startswith("-") and args[0] not in self.commands:
            from launcher.cli.command_suggestions import tip

            options = [one for one in self.commands[DEFAULT].params if hasattr(one, "is_flag")]
            takes_value = {name: not one.is_flag for one in options for name in one.opts}
            raise UsageError(tip(args[0], args[1:], self.commands, takes_value))
        return super().parse_args(ctx, args)

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the root's options. For shell completion, add those of a launch.

        The two options for completion get a plain default, for the reason in quick.py.
        """
        for param in self.params:
            if param.name in ("install_completion", "show_completion"):
                param.default = False
                use_our_scripts()
        own = super().get_params(ctx)
        return [*self._launch_options(), *own] if ctx.resilient_parsing else own

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the usage line's words after `launch`."""
        return ["[VERB]", "[OPTIONS]", "[-- COMMAND…]"]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help, with the default command's options among the root's."""
        whole = copy.copy(self)
        whole.params = [*self._launch_options(), *self.params]
        QuickGroup.format_help(whole, ctx, formatter)

    def _launch_options(self) -> list[Any]:
        return [param for param in self.commands[DEFAULT].params if param.name != "stray"]


_TASKS: dict[str, dict[str, str]] = {
    "Launch": {
        DEFAULT: "commands.launch.launch.launch",
        "rerun": "commands.launch.rerun.rerun",
        "resume": "commands.launch.resume.resume",
        "recover": "commands.launch.recover.recover",
        "batch": "commands.batch.batch.app",
        "check": "commands.launch.check.check",
        "verify": "commands.launch.verify.verify",
        "init": "commands.launch.init.init",
    },
    "Look": {
        "ps": "commands.look.ps.ps",
        "attach": "commands.look.attach.attach",
        "logs": "commands.look.logs.logs",
        "metrics": "commands.look.metrics.metrics",
        "plot": "commands.look.plot.plot",
        "compare": "commands.look.compare.compare",
        "diagnose": "commands.look.diagnose.diagnose",
        "explain": "commands.look.explain.explain",
    },
    "Files": {"ls": "commands.files.ls.ls", "pull": "commands.files.pull.pull", "cp": "commands.files.cp.cp"},
    "Work beside a run": {
        "exec": "commands.beside.execute.execute",
        "shell": "commands.beside.shell.shell",
        "forward": "commands.beside.forward.forward",
    },
    "End and clean up": {
        "stop": "commands.end.stop.stop",
        "extend": "commands.rental.extend.extend",
        "rm": "commands.end.rm.rm",
        "gc": "commands.end.gc.gc",
        "sweep": "commands.end.sweep.sweep",
        "reconcile": "commands.rental.reconcile.reconcile",
    },
    "Hosts and cards": {
        "hosts": "commands.hosts.hosts.hosts",
        "offers": "commands.rental.offers.offers",
        "probe": "commands.hosts.probe.probe",
        "doctor": "commands.hosts.doctor.doctor",
        "drill": "commands.hosts.drill.drill",
        "trust": "commands.hosts.trusting.trust",
        "profile": "commands.hosts.profile.app",
        "image": "commands.hosts.image.app",
    },
}
"""The commands by task, in the order of the help. Each is imported when it is used."""
_CLASSES = {
    DEFAULT: "quick.TrailingCommand",
    "exec": "commands.beside.execute.ExecuteCommand",
    "check": "quick.LocalCommand",
    "offers": "quick.LocalCommand",
    "trust": "quick.LocalCommand",
    "shell": "quick.TrailingCommand",
    "forward": "quick.TrailingCommand",
    "verify": "quick.TrailingCommand",
}
_VERBS = frozenset(name for verbs in _TASKS.values() for name in verbs)


def _print_version(value: bool) -> None:
    if value:
        from launcher.cli.text.version_text import version_text

        print(f"launch {version_text()}")
        raise typer.Exit


def _root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def _app_of(names: Container[str], *, is_overview: bool = False) -> typer.Typer:
    """Return the root command with the commands in `names`. In an overview, only the default command has arguments."""
    root = typer.Typer(
        cls=RootGroup,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": WIDEST},
        help=_named("commands.launch.launch.HELP") if DEFAULT in names else None,
    )
    root.callback()(_root)
    for task, verbs in _TASKS.items():
        for name, verb in verbs.items():
            if name not in names:
                continue
            shown = _named(verb)
            if is_overview and name != DEFAULT:
                shown = _outline(shown)
            if isinstance(shown, typer.Typer):
                root.add_typer(shown, name=name, rich_help_panel=task)
            else:
                root.command(
                    name,
                    cls=_named(_CLASSES[name]) if name in _CLASSES else QuickCommand,
                    rich_help_panel=task,
                )(shown)
    return root


def _named(name: str) -> Any:
    """Import the object `module.NAME` of this package."""
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(f"launcher.cli.{module}"), attribute)


def _outline(verb: Any) -> Any:
    """Return a stand-in for a command or group that has only its help text."""
    if isinstance(verb, typer.Typer):
        return typer.Typer(help=verb.info.help)

    def outline() -> None:
        pass

    outline.__doc__ = verb.__doc__
    return outline


@cache
def whole_app() -> typer.Typer:
    """Return the root command with all commands."""
    return _app_of(_VERBS)


def app_for(words: Sequence[str]) -> typer.Typer:
    """Return the root command for these words: with the command that they name, or with all for an unknown one.

    The import of forty commands, and typer's parsing of their signatures, takes longer than the work of most commands.
    """
    if "_LAUNCH_COMPLETE" in os.environ:
        return whole_app()
    if len(words) == 1 and words[0] in _ABOUT_ALL:
        return _app_of(_VERBS, is_overview=True)
    first = words[0] if words else DEFAULT
    if first.startswith("-") and first not in _OWN:
        first = DEFAULT
    return _app_of({first}) if first in _VERBS else whole_app()


def main() -> None:
    """Run the command line.

    A LaunchError becomes a message and its exit code. Any other exception is a bug, and its traceback is shown.
    """
    rejoin_words()
    prepare()
    heed_sigterm()
    if "_LAUNCH_COMPLETE" not in os.environ:
        question.answer_by(agrees)
    try:
        try:
            code = typer.main.get_command(app_for(sys.argv[1:]))(prog_name="launch", standalone_mode=False)
        finally:
            sys.stdout.flush()
            _tell_ended_runs()
            _tell_rentals()
            _leave_connection()
        sys.exit(code if isinstance(code, int) else 0)
    except WrongWordsError as error:
        tell_wrong_words(error)
        sys.exit(UsageError.exit_code)
    except typer.Abort as error:  # the input ended, or Ctrl-C, at a question
        if isinstance(error.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        if isinstance(error.__cause__, EOFError):  # typer takes every EOFError for the end of the input
            raise error.__cause__ from None
        complain("nothing was done")
        sys.exit(1)
    except LaunchError as error:
        complain(str(error))
        sys.exit(error.exit_code)
    except FileNotFoundError:
        if _has_working_directory():
            raise
        complain("the current directory has been removed\n  next   cd to an existing folder")
        sys.exit(UsageError.exit_code)
    except Terminated:
        sys.exit(Terminated.exit_code)
    except BrokenPipeError:
        _forget_stdout()  # the reader has closed the pipe, e.g. `launch logs | head`
        sys.exit(0)
    except UnreadableError as error:
        complain(f"{error.filename} {error.strerror}")
        sys.exit(1)
    except OSError as error:
        if error.filename is not None or error.errno not in _CANNOT_WRITE:
            raise
        _forget_stdout()
        complain(f"standard output: {error.strerror}")
        sys.exit(1)


def _tell_ended_runs() -> None:
    """Print the abandoned runs that were ended because their host answered. Few commands import that module."""
    stops = sys.modules.get("launcher.runs.move.pending_stops")
    for words in stops.said if stops is not None else ():
        complain(words)


def _tell_rentals() -> None:
    """Print warnings about rentals. Print nothing during shell completion.

    `hosts` and `reconcile` themselves list the rentals that no process on this computer will end.
    """
    if "_LAUNCH_COMPLETE" in os.environ:
        return
    for words in rental_warnings(says_all=not {"hosts", "reconcile"} & {*sys.argv[1:2]}):
        complain(words)


def _leave_connection() -> None:
    """Keep the connection to a host open for the next command. Few commands have one."""
    held = sys.modules.get("launcher.transport.persistent_connection")
    if held is not None:
        held.leave()


_CANNOT_WRITE = (errno.ENOSPC, errno.EIO, errno.EBADF)


def _forget_stdout() -> None:
    """Redirect standard output to /dev/null: Python would retry the failed write when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _has_working_directory() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True
