"""Base classes of all commands: a fast start, and help with examples that can be pasted.

typer loads pydantic (50 ms) if the default of `--help` is not a bool.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from launcher.cli.help_text import usage, write_commands, write_options, write_text
from launcher.cli.options import common_options
from launcher.cli.output.say import complain
from launcher.errors import UsageError

WrongWordsError: Any = typer.BadParameter.__base__
"""typer's base class of command-line errors. typer exports only some of its subclasses."""


_PLAIN = (
    (r"Input should be a valid integer.*", "a whole number is expected"),
    (r"Input should be a valid number.*", "a number is expected"),
    (r"Input should be greater than or equal to (\S+)", r"at least \1 is expected"),
    (r"Input should be less than or equal to (\S+)", r"at most \1 is expected"),
)
"""Patterns of pydantic's messages, and the plain words for them."""


class QuickCommand(TyperCommand):
    """A command."""

    asks_hosts = True

    def __init__(self, *words: Any, **values: Any) -> None:
        """Add the options of every command."""
        super().__init__(*words, **values)
        options = common_options()
        self.params = [*self.params, *(options if self.asks_hosts else options[:-1])]

    def get_help_option(self, ctx: Any) -> Any:
        """Return the help option with a plain default."""
        return _with_default(super().get_help_option(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse an option that takes one value and is given twice, a missing RUN, and unexpected words.

        Raises UsageError with commands to type.
        """
        if not ctx.resilient_parsing:
            self._refuse_twins(ctx, args)
        elif args and self._takes_value(ctx, args[-1]):
            args = args[:-1]  # its value is still being typed; typer would drop the earlier arguments
        ctx.allow_extra_args = True  # refused below, with a command to type
        try:
            extra = super().parse_args(ctx, list(args))
        except WrongWordsError as error:
            error.ctx = error.ctx or ctx
            missing = (
                getattr(getattr(error, "param", None), "metavar", None)
                if type(error).__name__ == "MissingParameter"
                else None
            )
            if missing is None:
                raise
            raise UsageError(_what_is_missing(ctx.command_path, str(missing))) from None
        if extra and not ctx.resilient_parsing:
            from launcher.cli.command_suggestions import tip_for_extra

            can_choose = any("--host" in param.opts for param in self.params) and not ctx.params["host"]
            raise UsageError(tip_for_extra(ctx.command_path, args, extra, can_choose_host=can_choose))
        return extra

    def _takes_value(self, ctx: Any, word: str) -> bool:
        return any(
            word in param.opts and not param.is_flag
            for param in self.get_params(ctx)
            if isinstance(param, TyperOption)
        )

    def _refuse_twins(self, ctx: Any, args: list[str]) -> None:
        try:
            _, _, order = self.make_parser(ctx).parse_args(list(args))
        except WrongWordsError as error:
            error.ctx = error.ctx or ctx
            raise
        for param, times in Counter(order).items():
            has_one_value = isinstance(param, TyperOption) and not (
                param.multiple or param.is_flag or param.count
            )
            if times > 1 and has_one_value:
                raise UsageError(
                    f"{param.opts[0]} is given {times} times, but takes one value\n  see   {ctx.command_path} --help"
                )

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the usage line's words after the command's name."""
        return usage(self.get_params(ctx), command=self.command_words)

    command_words = ""
    """The usage line's text for the words after `--`; empty if none may follow."""

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write the description and the examples, each example on a separate line."""
        write_text(formatter, self.help or "")

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and the options, in groups."""
        write_options(formatter, ctx, self.get_params(ctx))


class LocalCommand(QuickCommand):
    """A command that contacts no host."""

    asks_hosts = False


class TrailingCommand(QuickCommand):
    """A command of launch that accepts another command after `--`."""

    command_words = "[-- COMMAND…]"

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the words after `--` unchanged. Without `--`, leave unknown options to the command for the host, if one is typed."""
        if "--" in args:
            ctx.obj = args[args.index("--") + 1 :]
            args = args[: args.index("--")]
        elif not ctx.resilient_parsing:
            ctx.ignore_unknown_options = self._has_command(ctx, args)
        return super().parse_args(ctx, args)

    def _has_command(self, ctx: Any, args: list[str]) -> bool:
        """Return whether the first unknown option follows a word that belongs to a command for the host."""
        ctx.ignore_unknown_options = True
        values, _, _ = self.make_parser(ctx).parse_args(list(args))
        stray: list[str] = [*(values.pop("stray", None) or ())]
        own = [values.get(param.name) for param in self.params if param.param_type_name == "argument"]
        return bool(stray) and not any(str(word).startswith("-") for word in (*own, stray[0]))


class QuickGroup(TyperGroup):
    """A group of commands."""

    def get_help_option(self, ctx: Any) -> Any:
        """Return the help option with a plain default."""
        return _with_default(super().get_help_option(ctx))

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write the group's description."""
        write_text(formatter, self.help or "")

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the commands by task, then the options."""
        self.format_commands(ctx, formatter)
        write_options(formatter, ctx, self.get_params(ctx))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, each with its complete first sentence."""
        write_commands(formatter, self.commands)


def tell_wrong_words(error: Any) -> None:
    """Print the error of a command line, and the command for its help. For a group without a command, print its help."""
    if error.ctx is None or type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return
    path, sbatch = error.ctx.command_path, None
    if type(error).__name__ == "NoSuchOption":
        from launcher.cli.command_suggestions import of_sbatch  # few commands are mistyped

        sbatch = of_sbatch(error.option_name) if path == "launch run" else None
        error.possibilities = _near_options(error) if sbatch is None else None
    said = error.format_message().replace("Value error, ", "").rstrip(".")
    for pattern, plain in _PLAIN:
        said = re.sub(pattern, plain, said)
    if "'fp16-native' is not one of" in said:
        from launcher.values.precision import NO_NATIVE  # loads pydantic

        said = NO_NATIVE
    of_slurm = f"  on a Slurm cluster   {sbatch}\n" if sbatch is not None else ""
    complain(f"{path}: {said[:1].lower()}{said[1:]}\n{of_slurm}  see   {path} --help")


def _near_options(error: Any) -> list[str]:
    """Return the options of the command and of `launch` that are most like an unknown option, closest first."""
    contexts = [error.ctx, *([error.ctx.parent] if error.ctx.parent else [])]
    known = [
        name
        for ctx in contexts
        for param in ctx.command.params
        for name in (*param.opts, *param.secondary_opts)
    ]
    known += ["--help"]
    names = {name: None for name in known if name.startswith("--")}
    asked: str = error.option_name
    if not asked.startswith("--"):  # one letter: the options that begin with it
        return [name for name in names if name.startswith(f"-{asked[:2]}")]
    return difflib.get_close_matches(asked, names, cutoff=0.7)


def _with_default(option: Any) -> Any:
    if option is not None:
        option.default = False
    return option


def _what_is_missing(path: str, missing: str) -> str:
    if missing in ("RUN", "RUN…", "RUN:PATH"):
        path_too = ":PATH" if missing == "RUN:PATH" else ""
        return f"{path}: which run?\n  the newest   {path} last{path_too}\n  all of them  launch ps"
    return f"{path}: {missing} is missing\n  see   {path} --help"
