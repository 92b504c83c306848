"""Parse the lines of a record's event files."""

from __future__ import annotations

from pydantic import ConfigDict, TypeAdapter, ValidationError

from launcher.values.record import Event

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
