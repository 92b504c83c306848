"""Questions to the user at the terminal. The command line sets how to ask, and lower modules ask."""

from __future__ import annotations

from collections.abc import Callable

Asker = Callable[[str], bool | None]
"""Asks a question. Returns the answer, or None without a user to ask."""
_asker: Asker | None = None


def answer_by(asker: Asker) -> None:
    """Set how to ask questions.

    Before that, every answer is None: a shell that completes a word has no user to ask.
    """
    global _asker  # noqa: PLW0603 - one process has one terminal
    _asker = asker


def agrees(question: str) -> bool | None:
    """Return the user's answer, None without a terminal."""
    return _asker(question) if _asker is not None else None
