"""A run as its log alone, for `launch logs -f`."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Mapping
from pathlib import Path

from launcher.cli.plain_view import PlainView
from launcher.cli.say import without_escapes
from launcher.runs.mirror import Mirror, News
from launcher.values.record import Parent


class LogView(PlainView):
    """Only the log, read from the mirror, so that nothing is shown twice or left out."""

    def __init__(self, mirror: Mirror, starts: Mapping[Path, int] | None = None) -> None:
        """Begin each log where `starts` says, in bytes; by default at its beginning."""
        super().__init__()
        self._mirror = mirror
        self._shown = dict(starts or {})

    def continues(self, run: str, parent: Parent) -> None:
        """Do nothing: the parent run is not part of the log."""

    def news(self, news: News) -> None:
        """Show the next piece of the log, which is in the mirror already."""
        self.show()

    def show(self) -> None:
        """Show what is new in all attempts; an incomplete character is held back until its rest arrives."""
        for path in self._mirror.logs():
            shown = self._shown.get(path, 0)
            with path.open("rb") as file:
                file.seek(shown)
                text, size = codecs.utf_8_decode(file.read(), "replace")
            self._shown[path] = shown + size
            sys.stdout.write(without_escapes(text))
        sys.stdout.flush()
