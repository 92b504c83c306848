"""The excluded files of an upload, in words."""

from __future__ import annotations

from collections.abc import Iterable

from rich.filesize import decimal

from launcher.values.upload_selection import ExcludedPath, ExclusionReason, Size, UploadSelection

MAX_NAMED = 6
FEW = 3
"""Up to this many exclusions are all named, whatever their size."""
_SELF_EXPLANATORY = (ExclusionReason.CREDENTIALS, ExclusionReason.KEY_NAME, ExclusionReason.ENVIRONMENT)
"""The reasons that need no words, because a name like `.env`, `id_rsa` or `.venv/` shows them."""
WORTH_NAMING = 1_000_000
"""The minimum bytes for naming an exclusion's size. Smaller exclusions by git or a rule are only counted."""


def left_out_line(selection: UploadSelection) -> str:
    """Return the exclusions in one line, first secrets, then the largest: `.env, .venv/ (1.2 GB)`.

    Empty if nothing was excluded.
    """
    worth = [one for one in selection.left_out if not one.why.is_routine]
    named = sorted((one for one in worth if len(worth) <= FEW or _is_worth_naming(one)), key=_rank)
    words = [_short(one) for one in named[:MAX_NAMED]]
    more = len(worth) - len(words)
    return ", ".join([*words, *([f"{more:,} more"] if more else [])])


def _is_worth_naming(one: ExcludedPath) -> bool:
    is_small = one.size is not None and one.size.bytes < WORTH_NAMING and not one.size.is_at_least
    return not (is_small and one.why in (ExclusionReason.GIT, ExclusionReason.RULE))


def _rank(one: ExcludedPath) -> tuple[bool, int]:
    return not one.why.is_secret, 0 if one.why.is_secret or one.size is None else -one.size.bytes


def _short(one: ExcludedPath) -> str:
    why = [] if one.why in _SELF_EXPLANATORY else [one.why.value]
    size = [size_words(one.size)] if one.size and one.size.bytes >= WORTH_NAMING else []
    return f"{path_of(one)} ({', '.join([*why, *size])})" if why or size else path_of(one)


def path_of(one: ExcludedPath) -> str:
    """Return an excluded path as shown to the user."""
    return f"{one.key} {one.path}" if one.key else one.path


def size_words(size: Size) -> str:
    """Return a size, for example `1.2 GB` or `over 1.2 GB`."""
    return f"over {decimal(size.bytes)}" if size.is_at_least else decimal(size.bytes)


def surprises(selection: UploadSelection) -> Iterable[str]:
    """Yield exclusions that the user may not expect, for example links that lead out of the folder."""
    for one in selection.left_out:
        if one.why.is_surprising:
            link = f" -> {one.link}" if one.link is not None else ""
            yield f"{path_of(one)}{link} ({one.why.value})"
