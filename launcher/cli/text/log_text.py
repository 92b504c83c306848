"""A training's output as readable lines: without escape sequences, and only the last state of a progress bar."""

from __future__ import annotations

import re

from launcher.cli.output.say import without_escapes

_LINE_BELOW = re.compile(r"\n([^\n]*?)\x1b\[1?A")
_MAX_LINES_BELOW = 8
_PRINTABLE = bytes([*range(32, 127), 10])


def readable(text: str) -> str:
    """Return the lines of `text` without escape sequences and overwritten text, joined by newlines.

    Printable ASCII takes a short path: 100,000 lines, which a training may print at once, take a few milliseconds.
    """
    if text.isascii() and not text.encode("ascii").translate(None, _PRINTABLE):
        return text
    for _ in range(_MAX_LINES_BELOW):  # tqdm draws a second bar below the first, then moves the cursor up
        text, changes = _LINE_BELOW.subn(r"\r\1\r", text)
        if not changes:
            break
    return "\n".join(line if line.isprintable() else _last_state(line) for line in text.split("\n"))


def _last_state(line: str) -> str:
    """Return a line's final text in a terminal. A carriage return starts the line again."""
    states = without_escapes(line).split("\r")
    return next((state for state in reversed(states) if state.strip()), "")
