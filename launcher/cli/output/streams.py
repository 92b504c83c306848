"""Standard output and standard error: characters that their encoding lacks, colours, and terminal or pipe."""

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
"""Replacements for our characters in an encoding that lacks them. Any other becomes a question mark."""
_colour = "auto"


def prepare() -> None:
    """Make both streams accept any text: a character that the encoding lacks is replaced by ASCII."""
    codecs.register_error("launch-twin", _twins)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed, as by `launch ps >&-`
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - open until the process ends
        stream = getattr(sys, name)
        if isinstance(getattr(stream, "buffer", None), io.RawIOBase):
            # PYTHONUNBUFFERED is set: if a signal cut a write short, the rest of the text would be lost.
            stream = io.TextIOWrapper(
                io.BufferedWriter(stream.buffer), encoding=stream.encoding, line_buffering=True
            )
            setattr(sys, name, stream)
        if hasattr(stream, "reconfigure"):  # a test's stand-in lacks it
            stream.reconfigure(errors="launch-twin")


def choose_colour(choice: str) -> None:
    """Set the use of colours to one of COLOURS. `auto` depends on NO_COLOR, FORCE_COLOR and the terminal."""
    global _colour  # noqa: PLW0603 - one process has one terminal
    _colour = choice


def is_terminal(*, stderr: bool = False) -> bool:
    """Whether standard output, or standard error, is a terminal."""
    return (sys.stderr if stderr else sys.stdout).isatty()


def may_have_colours() -> bool:
    """Whether standard output may get colours: it is a terminal, or colours are forced. If not, no console is needed."""
    return is_terminal() or _colour == "always" or (_colour != "never" and _is_forced())


def console(*, stderr: bool = False) -> Console:
    """Return a console on standard output or standard error. Forced colours do not make it a terminal."""
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
