"""The classes of all verbs: they start quickly, and have help whose examples can be pasted.

typer loads pydantic (50 ms) for an unset `--help` unless its default is a bool.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from launcher.cli.help_text import usage, write_commands, write_options, write_text
from launcher.cli.output.say import complain
from launcher.errors import UsageError

WrongWordsError: Any = typer.BadParameter.__base__
"""What typer raises for words that it does not understand; it exports some of its kinds only."""


_PLAIN = (
    (r"Input should be a valid integer.*", "a whole number is expected"),
    (r"Input should be a valid number.*", "a number is expected"),
    (r"Input should be greater than or equal to (\S+)", r"at least \1 is expected"),
    (r"Input should be less than or equal to (\S+)", r"at most \1 is expected"),
)
"""How pydantic says what is wrong with a value, and how we do."""


class QuickCommand(TyperCommand):
    """A verb."""

    def get_help_option(self, ctx: Any) -> Any:
        """Return the help option with a plain default."""
        return _with_default(super().get_help_option(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse an option that is given twice but has one value. A missing RUN is told with what to type."""
        if not ctx.resilient_parsing:
            self._refuse_twins(ctx, args)
        elif args and self._takes_value(ctx, args[-1]):
            args = args[:-1]  # its value is being typed; with it, typer would forget the arguments before it
        try:
            return super().parse_args(ctx, args)
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
                    f"{param.opts[0]} is given {times} times, and has one value\n  see   {ctx.command_path} --help"
                )

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the usage line."""
        return usage(self.get_params(ctx), command=self.command_words)

    command_words = ""
    """How the usage line shows a command that may follow after `--`; empty if none may."""

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write what the verb does; its examples stand on their own lines."""
        write_text(formatter, self.help or "")

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and the options, in groups."""
        write_options(formatter, ctx, self.get_params(ctx))


class QuickGroup(TyperGroup):
    """A group of verbs."""

    def get_help_option(self, ctx: Any) -> Any:
        """Return the help option with a plain default."""
        return _with_default(super().get_help_option(ctx))

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write what the verbs are for."""
        write_text(formatter, self.help or "")

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the verbs by task, then the options."""
        self.format_commands(ctx, formatter)
        write_options(formatter, ctx, self.get_params(ctx))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the verbs with the whole first sentence of each."""
        write_commands(formatter, self.commands)


def tell_wrong_words(error: Any) -> None:
    """Say what is wrong with a command line, and where its help is. A group without a verb shows its help."""
    if error.ctx is None or type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return
    path = error.ctx.command_path
    if type(error).__name__ == "NoSuchOption":
        error.possibilities = _near_options(error)
    said = error.format_message().replace("Value error, ", "").rstrip(".")
    for pattern, plain in _PLAIN:
        said = re.sub(pattern, plain, said)
    if "'fp16-native' is not one of" in said:
        from launcher.values.precision import NO_NATIVE  # loads pydantic

        said = NO_NATIVE
    complain(f"{path}: {said[:1].lower()}{said[1:]}\n  see   {path} --help")


def _near_options(error: Any) -> list[str]:
    """Return the options nearest to one that there is not, the nearest first: those of the verb, and of `launch` itself."""
    contexts = [error.ctx, *([error.ctx.parent] if error.ctx.parent else [])]
    known = [
        name
        for ctx in contexts
        for param in ctx.command.params
        for name in (*param.opts, *param.secondary_opts)
    ]
    known += ["--help"]
    return difflib.get_close_matches(
        error.option_name, {name: None for name in known if name.startswith("--")}
    )


def _with_default(option: Any) -> Any:
    if option is not None:
        option.default = False
    return option


def _what_is_missing(path: str, missing: str) -> str:
    if missing in ("RUN", "RUN…", "RUN:PATH"):
        path_too = ":PATH" if missing == "RUN:PATH" else ""
        return f"{path}: which run?\n  the newest   {path} last{path_too}\n  all of them  launch ps"
    return f"{path}: {missing} is missing\n  see   {path} --help"
