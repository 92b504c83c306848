"""The notification at a run's end: a command on the host, or a webhook's address."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

_ADDRESS = re.compile(r"https?://[^\s/]+.*|\$.+")
_SECRET = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


def _words(written: Any) -> Any:
    """Return a webhook's address as a tuple of one word; a list of words is a command."""
    if not isinstance(written, str):
        return tuple(written) if isinstance(written, list) else written
    if not _ADDRESS.fullmatch(written):
        raise ValueError('expected a list of words, ["notify.sh"], or an address, "https://…" or "$NAME"')
    return (written,)


def _checked(words: tuple[str, ...]) -> tuple[str, ...]:
    if words and not words[0]:
        raise ValueError("its first word is empty")
    if any("\0" in word for word in words):
        raise ValueError("a word holds a NUL byte")
    return words


OnEnd = Annotated[
    tuple[Annotated[str, Field(max_length=4000)], ...], BeforeValidator(_words), AfterValidator(_checked)
]
"""The words of a command, or the one word of a webhook: its address, in which `$NAME` stands for a secret."""


def is_webhook(words: Sequence[str]) -> bool:
    """Return whether these words are a webhook's address."""
    return len(words) == 1 and _ADDRESS.fullmatch(words[0]) is not None


def secrets_of(words: Sequence[str]) -> list[str]:
    """Return the names of the secrets in a webhook's address. A command gets its secrets as variables."""
    return [first or second for first, second in _SECRET.findall(words[0])] if is_webhook(words) else []
