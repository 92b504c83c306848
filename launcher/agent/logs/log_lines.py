"""Cut the bytes of a log into lines, and remove what terminals and loggers put around them."""

from __future__ import annotations

import re
from typing import List, NamedTuple, Optional

MAX_LINE = 20_000

_ESCAPE = re.compile(r"\x1b\[[0-?]{0,40}[ -/]{0,8}[@-~]|[\x00-\x08\x0b-\x1f\x7f]")
_LEVEL = r"(?:INFO|DEBUG|WARN(?:ING)?|ERROR|CRITICAL|NOTICE|info|Info)"
_PREFIX = re.compile(
    r"(?:"
    r"\[?\d{4}[-/]\d\d[-/]\d\d[ T_]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?(?: "
    + _LEVEL
    + r")?\]?[:,]?"
    r"|\[?\d\d[/-]\d\d(?:[/-]\d{2,4})? \d\d:\d\d:\d\d(?:[.,]\d{1,6})?(?: [\w.]{1,60})?\]?:?"
    r"|\[?\d\d:\d\d:\d\d(?:[.,]\d{1,6})?\]?(?=[\s|:-])"
    r"|\[(?:rank|Rank|default|GPU|gpu|local_rank|RANK)[ :=]?(?P<rank>\d{1,5})\]:?|\[(?P<number>\d{1,5})\]:"
    r"|(?P<label>(?:\[\d{1,4}\](?=\s)|\d{1,4}:(?=\s))(?=\s{1,4}(?i:(?:global[ _])?(?:step|iter|iteration|epoch))\b))"
    r"|\[" + _LEVEL + r"(?:\|[\w.]{1,60}:\d{1,6})?\]"
    r"|" + _LEVEL + r"(?::[\w.]{1,60}:|[ ]{0,8}[|:-]|(?=\s{1,4}\S))"
    r"|\[?[\w./-]{1,80}\.py(?::\d{1,6}(?::\w{1,60})?)?\]?:?(?=\s)"
    r"|\[[a-z][\w.]{1,60}\](?=\[|\s)|\([\w.]{0,60} ?pid=\d{1,9}[^)\n]{0,60}\)|\((?:[A-Za-z_]\w{0,40}:)?\d{1,6}\)(?= "
    + _LEVEL
    + r")"
    r"|[\w.]{1,60} - "
    + _LEVEL
    + r" -|[\w.]{1,60} - (?="
    + _LEVEL
    + r"\b)|>>|(?:root|__main__|\w{1,30}\.\w{1,60}(?:\.\w{1,60}){0,6})(?: -|:\d{1,6} -|:|(?=\s{0,3}\|))"
    r"|I\d{4,8} \d\d:\d\d:\d\d\.\d{1,6}\s{1,4}\d{1,9} [\w./-]{1,80}:\d{1,6}\]"
    r"|\[[\w-]{1,40}\](?= \d{4}-\d\d-\d\d)"
    r"|[-|]"
    r")\s{0,8}"
)
_MAX_PREFIXES = 8


class Prefix(NamedTuple):
    """A logger's prefix of a line: where it ends, and the position of the rank in it.

    If `is_label`, the rank is a bare number, as `srun --label` prints it, and may be something else.
    """

    end: int
    rank: Optional[slice]
    is_label: bool = False


class LineSplitter:
    """The lines of a log, regardless of how its bytes are split on arrival.

    A line ends at a newline or a carriage return. A line of more than MAX_LINE bytes becomes empty.
    """

    def __init__(self) -> None:
        """Start before the first line."""
        self._parts = bytearray()
        self._is_too_long = False

    def cut(self, piece: bytes) -> List[bytes]:
        """Take the next bytes; return the lines that they complete."""
        lines = piece.replace(b"\r", b"\n").split(b"\n")
        rest = lines.pop()
        if lines and (self._parts or self._is_too_long):
            self._keep(lines[0])
            lines[0] = b"" if self._is_too_long else bytes(self._parts)
            self._parts.clear()
            self._is_too_long = False
        self._keep(rest)
        if len(piece) > MAX_LINE:
            lines = [line if len(line) <= MAX_LINE else b"" for line in lines]
        return lines

    def _keep(self, part: bytes) -> None:
        self._is_too_long = self._is_too_long or len(self._parts) + len(part) > MAX_LINE
        if self._is_too_long:
            self._parts.clear()
        else:
            self._parts += part


def text_of(segment: bytes) -> str:
    """Return a line as text without colours and control characters."""
    text = segment.decode("utf-8", "replace")
    return _ESCAPE.sub("", text) if not text.isprintable() else text


def prefix_of(text: str) -> Prefix:
    """Return the time stamps, levels, module names and rank at the beginning of a line."""
    rank: Optional[slice] = None
    is_label = False
    begin = len(text) - len(text.lstrip(" "))
    if text[begin : begin + 1].isalpha() and text[begin : begin + 5].lower() in (
        "epoch",
        "step ",
        "step:",
        "iter ",
        "train",
    ):
        return Prefix(0, None)
    for _ in range(_MAX_PREFIXES):
        match = _PREFIX.match(text, begin)
        if not match or match.end() == begin:
            break
        group = match.lastgroup
        if group is not None:
            rank, is_label = slice(*match.span(group)), group == "label"
        begin = match.end()
    return Prefix(begin, rank, is_label)
