"""The mistakes in a batch and the notes on it, each with its key and line in the file, or its option."""

from __future__ import annotations

from collections.abc import Collection

from launcher.errors import BadFileError, RefusedError
from launcher.values.parsing import line_near

_OPTIONS = {"matrix": "--grid", "settings": "--set", "secrets": "--secret", "command": "the command after --"}
"""The command line's word for a key of a file, if it is not `--KEY`."""


class Mistakes:
    """The mistakes of a batch, reported all at once, and its notes."""

    def __init__(self, file: str | None, text: str = "", options: Collection[str] = ()) -> None:
        """Messages name `file` and its keys.

        If `file` is None, and for the keys in `options`, they name options of the command line.
        """
        self._file, self._text, self._options = file, text, options
        self._said: dict[str, bool] = {}
        self._notes: dict[str, None] = {}

    def add(self, key: str, words: str, *, is_refusal: bool = False) -> None:
        """Add a mistake at a dotted key, which may be empty."""
        self._said.setdefault(self._placed(key, words), is_refusal)

    def note(self, key: str, words: str) -> None:
        """Add a note on a dotted key."""
        self._notes[self._placed(key, words)] = None

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes."""
        return tuple(self._notes)

    def tell(self) -> None:
        """Raise BadFileError if there are mistakes.

        If each mistake is one for which `launch` would raise RefusedError, raise that.
        """
        if self._said:
            text = "\n".join(self._said)
            raise RefusedError(text) if all(self._said.values()) else BadFileError(text)

    def _placed(self, key: str, words: str) -> str:
        first, *rest = words.splitlines()
        top, _, below = key.partition(".")
        if self._file is None or top in self._options:
            option = _OPTIONS.get(top, f"--{top}")
            inner = f" {below}" if top in ("matrix", "settings") and below else ""
            return "\n".join([f"{option}{inner}: {first}" if key else first, *rest])
        line = line_near(key, self._text)
        place = f"   (line {line})" if line else ""
        return "\n".join([f"{self._file}: {f'{key}: ' if key else ''}{first}{place}", *rest])
