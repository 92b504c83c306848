"""Standard output and standard error: letters that they cannot print, colours, and what is at their other end."""

from __future__ import annotations

import codecs
import io
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

COLOURS = ("auto", "always", "never")
_TWINS = {
    "✓": "+",
    "✗": "x",
    "·": "-",
    "…": "...",
    "→": "->",
    "—": "-",
    "≥": ">=",
    "≤": "<=",
    "█": "#",
    "━": "=",
    "╸": "-",
    "╺": "-",
}
"""What stands for our own letters where an alphabet lacks them; any other becomes a question mark."""
_colour = "auto"


def prepare() -> None:
    """Let both streams print any text: a letter that their encoding lacks gets its ASCII twin."""
    codecs.register_error("launch-twin", _twins)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed, as by `launch ps >&-`
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - it lasts as long as we do
        stream = getattr(sys, name)
        if isinstance(getattr(stream, "buffer", None), io.RawIOBase):
            # By PYTHONUNBUFFERED: of a write that a signal cuts short, the rest would be lost.
            stream = io.TextIOWrapper(
                io.BufferedWriter(stream.buffer), encoding=stream.encoding, line_buffering=True
            )
            setattr(sys, name, stream)
        if hasattr(stream, "reconfigure"):  # what a test puts there has none
            stream.reconfigure(errors="launch-twin")


def choose_colour(choice: str) -> None:
    """Set when colours are used, to one of COLOURS; `auto` asks NO_COLOR, FORCE_COLOR and the terminal."""
    global _colour  # noqa: PLW0603 - one process has one terminal
    _colour = choice


def is_terminal(*, stderr: bool = False) -> bool:
    """Whether standard output, or standard error, is a terminal."""
    return (sys.stderr if stderr else sys.stdout).isatty()


def may_have_colours() -> bool:
    """Whether standard output may get colours: it is a terminal, or they were asked for. What may not needs no console."""
    return is_terminal() or _colour == "always" or (_colour != "never" and _is_forced())


def console(*, stderr: bool = False) -> Console:
    """Return a console on standard output, or on standard error. It is a terminal only if one is there, whatever the colours."""
    from rich.console import Console

    is_there = is_terminal(stderr=stderr)
    if _colour == "never":
        return Console(stderr=stderr, highlight=False, force_terminal=is_there, color_system=None)
    if _colour == "always" or (_is_forced() and not is_there):
        return Console(
            stderr=stderr,
            highlight=False,
            force_terminal=is_there,
            color_system="256",
            no_color=False,
        )
    return Console(stderr=stderr, highlight=False, force_terminal=is_there)


def _is_forced() -> bool:
    return bool(os.environ.get("FORCE_COLOR")) and not os.environ.get("NO_COLOR")


def _twins(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lost = error.object[error.start : error.end]
    return "".join(_TWINS.get(letter, "?") for letter in lost), error.end
