"""Lines for people. What a host sent is data: nothing in it reaches the terminal as anything but text."""

from __future__ import annotations

import re
import sys
from typing import TextIO

_ESCAPE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # colours, the cursor
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)"  # titles, links
    r"|\x1b[ -/]*[0-~]?"  # the short ones, and the beginning of one that never ends
)


def say(*lines: str, file: TextIO | None = None) -> None:
    """Print lines, on standard output unless told otherwise; none can steer the terminal or begin another line."""
    from launcher.hosts.agent import printable  # loads pydantic, which `--help` does without

    print(*map(printable, lines), sep="\n", file=file, flush=True)


def complain(message: str) -> None:
    """Print a message of ours, which may have several lines, on standard error."""
    say(*message.split("\n"), file=sys.stderr)


def without_escapes(text: str) -> str:
    """Return a log's text without terminal escape sequences and control characters, but for newline, return and tab.

    Spaces of every kind stay spaces; characters that turn the direction of writing go too.
    """
    text = _ESCAPE.sub("", text)
    return "".join(
        char if char.isprintable() or char in "\n\r\t" else " " if char.isspace() else "" for char in text
    )
