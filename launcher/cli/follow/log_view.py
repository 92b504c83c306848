"""A run as its log alone, for `launch logs -f`."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Mapping

from launcher.cli.follow.plain_view import PlainView
from launcher.cli.output.say import without_escapes
from launcher.cli.text.log_records import log_records
from launcher.cli.text.log_text import readable
from launcher.copy.mirror import Mirror
from launcher.copy.printed_lines import Printed, PrintedLines
from launcher.copy.record_sync import News
from launcher.runs.follow.evidence import why_waiting
from launcher.values.record import Parent, RunState

_PIECE = 1 << 20
"""Bytes of a log that are shown at a time, cut between lines: a log may be of any size."""
_UNPRINTED = 3
"""So many metrics in a row that come while nothing is printed show that the training prints none."""


class LogView(PlainView):
    """Only the log, read from the mirror, so that nothing is shown twice or left out.

    Where the metrics are reported and not printed, a note on standard error says once where they are.
    """

    def __init__(self, mirror: Mirror, starts: Mapping[str, int] | None = None) -> None:
        """Begin each log where `starts` says, in bytes; by default at its beginning."""
        super().__init__()
        self._mirror = mirror
        self._shown = dict(starts or {})
        self._unprinted = 0
        self._said_of_wait: str | None = None

    def continues(self, run: str, parent: Parent) -> None:
        """Do nothing: the parent run is not part of the log."""

    def news(self, news: News) -> None:
        """Show the next piece of the log, which is in the mirror already."""
        before = sum(self._shown.values())
        self.show()
        self.waits(news.state)
        if self._unprinted >= _UNPRINTED:
            return
        reported = sum(event.kind == "metric" and event.source is None for event in news.events)
        self._unprinted = 0 if sum(self._shown.values()) > before else self._unprinted + reported
        if self._unprinted >= _UNPRINTED:
            self.say_where_metrics_are()

    def waits(self, state: RunState | None) -> None:
        """Say why a run waits to be started, and prints nothing meanwhile; once, until that changes."""
        words = None if state is None else why_waiting(state)
        if words is not None and words != self._said_of_wait:
            self.note(words)
        self._said_of_wait = words

    def say_where_metrics_are(self) -> None:
        """Say which verbs show the steps of this run."""
        short = self._mirror.short
        self.note(f"its steps are reported, not printed   launch attach {short} · launch metrics {short}")

    def show(self) -> None:
        """Show what is new in all attempts; an incomplete character is held back until its rest arrives."""
        for path in self._mirror.record.logs():
            with self._mirror.record.opened(path) as file:
                file.seek(self._shown.get(path, 0))
                held, piece = b"", file.read(_PIECE)
                while data := held + piece:
                    whole = data.rfind(b"\n") + 1 if len(piece) == _PIECE else 0
                    size = self._put(path, data[: whole or len(data)])
                    self._shown[path] = self._shown.get(path, 0) + size
                    if not piece:
                        break
                    held, piece = data[size:], file.read(_PIECE)
        sys.stdout.flush()

    def _put(self, path: str, data: bytes) -> int:
        """Show the next bytes of a log; return how many of them were shown."""
        del path
        text, size = codecs.utf_8_decode(data, "replace")
        sys.stdout.write(without_escapes(text))
        return size


class JsonLogView(LogView):
    """The same log as JSON, a record for each line."""

    def __init__(self, mirror: Mirror, starts: Mapping[str, int] | None = None) -> None:
        """Begin each log where `starts` says, in bytes; by default at its beginning."""
        super().__init__(mirror, starts)
        self._lines = PrintedLines(mirror.files)
        self._is_rehearsed = mirror.record.plan().rehearsed

    def close(self) -> None:
        """Show the last line, if it has no end."""
        self._print(self._lines.finish())
        super().close()

    def say_where_metrics_are(self) -> None:
        """Do nothing: who reads records does not wait at a terminal."""

    def _put(self, path: str, data: bytes) -> int:
        """Show the lines that the next bytes complete; the rest of them is kept."""
        self._print(self._lines.take(path, data))
        return len(data)

    def _print(self, lines: list[Printed]) -> None:
        for printed in lines:
            text = readable(printed.text)
            sys.stdout.write(log_records(self._mirror.run, printed, text, rehearsed=self._is_rehearsed))
        sys.stdout.flush()
