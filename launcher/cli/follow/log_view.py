"""The view of a run's log without other lines, for `launch logs -f`."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Mapping

from launcher.cli.follow.plain_view import PlainView
from launcher.cli.output.say import without_escapes
from launcher.cli.text.log_records import log_records
from launcher.cli.text.log_text import readable
from launcher.copy.local_copy import LocalCopy
from launcher.copy.printed_lines import Printed, PrintedLines
from launcher.copy.record_sync import News
from launcher.runs.follow.evidence import log_of_job, why_waiting, with_stop
from launcher.values.record import Parent, RunState

_PIECE = 1 << 20
"""Bytes of a log that are read at a time and cut between lines. A log has no size limit."""
_UNPRINTED = 3
"""After this many consecutive metrics without printed output, the training is assumed to print none."""
_OF_JOB = "0001/log.txt"
"""The path under which the log of a scheduler's job is shown, if no attempt has one."""


class LogView(PlainView):
    """Shows only the log. It reads the local copy, so that each line is shown exactly once.

    If a training reports metrics and does not print them, one note on standard error names the commands for them.
    """

    def __init__(self, local_copy: LocalCopy, starts: Mapping[str, int] | None = None) -> None:
        """Begin each log where `starts` says, in bytes; by default at its beginning."""
        super().__init__()
        self._local_copy = local_copy
        self._shown = dict(starts or {})
        self._unprinted = 0
        self._said_of_wait: str | None = None

    def continues(self, run: str, parent: Parent) -> None:
        """Do nothing: the parent run is not part of the log."""

    def news(self, news: News) -> None:
        """Show the next piece of the log, which is already in the local copy."""
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
        """Note why a run waits for its start. Repeat the note only when the reason changes."""
        words = None if state is None else why_waiting(state)
        if words is not None and words != self._said_of_wait:
            self.note(with_stop(words, self._local_copy.short))
        self._said_of_wait = words

    def say_where_metrics_are(self) -> None:
        """Note the commands that show the steps of this run."""
        short = self._local_copy.short
        self.note(f"its steps are reported, not printed   launch attach {short} · launch metrics {short}")

    def show(self) -> None:
        """Show the new output of all attempts. An incomplete character waits for its remaining bytes.

        If a scheduler's job could not begin its run, show the end of the job's log.
        """
        logs = self._local_copy.record.logs()
        told = self._local_copy.told
        if (
            not logs
            and told is not None
            and _OF_JOB not in self._shown
            and (log := log_of_job(told.evidence))
        ):
            self._shown[_OF_JOB] = self._put(_OF_JOB, f"{log}\n".encode())
        for path in logs:
            with self._local_copy.record.opened(path) as file:
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
        """Show the next bytes of a log. Return the number of bytes shown."""
        text, size = codecs.utf_8_decode(data, "replace")
        sys.stdout.write(without_escapes(text))
        return size


class JsonLogView(LogView):
    """Shows the log as JSON, a record for each line."""

    def __init__(self, local_copy: LocalCopy, starts: Mapping[str, int] | None = None) -> None:
        """Begin each log where `starts` says, in bytes; by default at its beginning."""
        super().__init__(local_copy, starts)
        self._lines = PrintedLines(local_copy.files)
        self._is_rehearsed = local_copy.record.plan().rehearsed

    def close(self) -> None:
        """Show the last line, if it lacks a newline."""
        self._print(self._lines.finish())
        super().close()

    def say_where_metrics_are(self) -> None:
        """Do nothing: a script needs no note."""

    def _put(self, path: str, data: bytes) -> int:
        """Show the lines that the next bytes complete. Keep the start of an unfinished line."""
        self._print(self._lines.take(path, data))
        return len(data)

    def _print(self, lines: list[Printed]) -> None:
        for printed in lines:
            text = readable(printed.text)
            sys.stdout.write(log_records(self._local_copy.run, printed, text, rehearsed=self._is_rehearsed))
        sys.stdout.flush()
