"""Print lines for people. Text from a host is untrusted: its control characters never reach the terminal."""

from __future__ import annotations

import re
import sys
from typing import TextIO

from launcher.values.text import printable

_ESCAPE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # colours, the cursor
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)"  # titles, links
    r"|\x1b[ -/]*[0-~]?"  # the short ones, and the start of an unfinished one
)


def say(*lines: str, file: TextIO | None = None) -> None:
    """Print lines, by default on standard output. Control characters and line breaks in them are made harmless."""
    print(*map(printable, lines), sep="\n", file=file, flush=True)


def complain(message: str) -> None:
    """Print a message, which may have several lines, on standard error."""
    say(*message.split("\n"), file=sys.stderr)


def without_escapes(text: str) -> str:
    """Remove terminal escape sequences and control characters from a log, except newline, return and tab.

    Every kind of space becomes a space; characters that change the direction of writing are removed.
    """
    text = _ESCAPE.sub("", text)
    return "".join(
        char if char.isprintable() or char in "\n\r\t" else " " if char.isspace() else "" for char in text
    )
