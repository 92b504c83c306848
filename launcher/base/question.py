"""How the person at the terminal is asked: the command line sets it, and what lies below asks by it."""

from __future__ import annotations

from collections.abc import Callable

Asker = Callable[[str], bool | None]
"""Asks a question; returns the answer, or None if there is nobody to ask."""
_asker: Asker | None = None


def answer_by(asker: Asker) -> None:
    """Have questions asked in this way. Until then nobody is asked: a shell that completes a word has no answers."""
    global _asker  # noqa: PLW0603 - one process has one terminal
    _asker = asker


def agrees(question: str) -> bool | None:
    """Return the answer of the person at the terminal, None without one."""
    return _asker(question) if _asker is not None else None
