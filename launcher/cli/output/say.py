"""Print lines of text. Text from a host is untrusted: its control characters never reach the terminal."""

from __future__ import annotations

import re
import sys
from typing import TextIO

from launcher.base.text import printables

_ENDS_TITLE = r"[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)"
_ESCAPE = re.compile(
    r"\x1b(?:"  # a fixed first byte: a search of text without it is fast
    r"\[[0-?]*[ -/]*[@-~]"  # colours, the cursor
    rf"|[\]PX^_]{_ENDS_TITLE}"  # titles, links
    r"|[ -/]*[0-~]?)"  # short sequences, and the start of an unfinished one
)
_ESCAPE_IN_ONE = re.compile(rf"\x9b[0-?]*[ -/]*[@-~]|[\x9d\x90\x98\x9e\x9f]{_ENDS_TITLE}")


def say(*lines: str, file: TextIO | None = None) -> None:
    """Print lines, by default on standard output. Control characters and line breaks within a line are replaced."""
    print("\n".join(printables(lines)), file=file, flush=True)


def complain(message: str) -> None:
    """Print a message of one or more lines on standard error."""
    say(*message.split("\n"), file=sys.stderr)


def without_escapes(text: str) -> str:
    """Remove terminal escape sequences and control characters from a log, except newline, carriage return and tab.

    Every kind of space becomes a plain space. Characters that change the writing direction are removed.
    """
    text = _ESCAPE.sub("", text)
    if not text.isascii():
        text = _ESCAPE_IN_ONE.sub("", text)
    if text.replace("\n", "").replace("\r", "").replace("\t", "").isprintable():
        return text  # the usual case; the loop over characters takes 50 times as long
    return "".join(
        char if char.isprintable() or char in "\n\r\t" else " " if char.isspace() else "" for char in text
    )
