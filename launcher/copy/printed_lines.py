"""Parse the lines of a record's event files, and join the pieces of a training's logs into complete lines."""

from __future__ import annotations

from typing import NamedTuple

from pydantic import ConfigDict, TypeAdapter, ValidationError

from launcher.copy.run_files import RunFiles
from launcher.values.record import Event, FolderStart

_EVENT = TypeAdapter(Event)
_EVENTS = TypeAdapter(list[Event], config=ConfigDict(defer_build=True))


def parse_event(line: bytes) -> Event | None:
    """Return the event of a line; `None` if the line is not an event."""
    try:
        return _EVENT.validate_json(line)
    except ValidationError:
        return None


def parse_events(lines: list[bytes]) -> list[Event]:
    """Return the events of lines, skipping lines that are not events.

    Parsing them together halves the time.
    """
    try:
        events = _EVENTS.validate_json(b"[%s]" % b",".join(lines))
    except ValidationError:
        events = []
    if len(events) == len(lines):
        return events
    return [event for event in map(parse_event, lines) if event is not None]


LONGEST_START = 64 * 1024
"""The number of bytes kept of an unfinished line. A progress bar can draw on one line for hours.

A longer line without carriage returns is not a progress bar, and is passed on in pieces.
"""


class Printed(NamedTuple):
    """Complete lines of one attempt, joined by newlines.

    `node` names the machine if a run has several, else it is empty. A very long line comes in pieces, each in
    a separate `Printed`; all but the last have `continues`.
    """

    attempt: int
    node: str
    text: str
    continues: bool = False


class PrintedLines:
    """Cuts the logs of a run into complete lines.

    An unfinished last line is kept for the next piece of its log.
    """

    def __init__(self, files: RunFiles) -> None:
        """Start at the first line of the local copy's logs."""
        self._files = files
        self._starts: dict[str, bytes] = {}
        self._attempts: dict[str, int] = {}

    @property
    def unfinished(self) -> str:
        """The start of the line that is being printed; empty if no line is."""
        start = next(reversed(self._starts.values()), b"")
        return start.decode("utf-8", "replace")

    def skip(self, name: str, data: bytes) -> None:
        """Skip lines that another client has shown; the last line may be unfinished."""
        self._keep(name, data[-LONGEST_START:].rpartition(b"\n")[2])

    def take(self, name: str, data: bytes) -> list[Printed]:
        """Return the lines completed by the next bytes of a log, preceded by the unfinished lines of earlier attempts."""
        number, _, node = name.removesuffix("log.txt").rstrip("/").partition("/")
        earlier = [other for other in self._starts if int(other.partition("/")[0]) < int(number)]
        printed = [self._finish(other) for other in earlier]
        whole, newline, start = data.rpartition(b"\n")
        if newline:
            text = (self._starts.pop(name, b"") + whole).decode("utf-8", "replace")
            printed.append(Printed(self._attempt(number), node, text))
        start = self._starts.pop(name, b"") + start
        if len(start) > LONGEST_START and b"\r" not in start:
            end = _end_of_whole_characters(start)
            printed.append(Printed(self._attempt(number), node, start[:end].decode("utf-8", "replace"), True))
            start = start[end:]
        self._keep(name, start[-LONGEST_START:])
        return printed

    def finish(self) -> list[Printed]:
        """Return the unfinished lines. Call this when no more bytes follow."""
        return [self._finish(name) for name in list(self._starts)]

    def forget(self, name: str) -> None:
        """Discard the unfinished line of a log that is read again from its beginning."""
        self._starts.pop(name, None)

    def _keep(self, name: str, start: bytes) -> None:
        if start:
            self._starts[name] = start

    def _finish(self, name: str) -> Printed:
        number, _, node = name.removesuffix("log.txt").rstrip("/").partition("/")
        text = self._starts.pop(name).decode("utf-8", "replace")
        return Printed(self._attempt(number), node, text)

    def _attempt(self, number: str) -> int:
        """Return the attempt whose folder has this number; 0 if unknown."""
        if number not in self._attempts:
            found = FolderStart.lenient(self._files.read_json(f"{number}/attempt.json")).attempt
            self._attempts[number] = found or 0
        return self._attempts[number]


def _end_of_whole_characters(data: bytes) -> int:
    """Return the start of the last UTF-8 character if it may be incomplete, else the end of the data."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 != 0x80:  # it begins a character
            return len(data) - back if byte >= 0xC0 else len(data)
    return len(data)
