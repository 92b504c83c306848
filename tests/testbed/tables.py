"""Tables of cases of which CI runs a few, and `make long` all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import pytest


def mostly_long(
    names: str | Sequence[str],
    values: Iterable[object],
    *,
    ci: Iterable[int],
    ids: Iterable[str] | Callable[[object], str] | None = None,
    indirect: bool = False,
) -> pytest.MarkDecorator:
    """Return what `pytest.mark.parametrize` does; cases at other places than those of `ci` are marked long."""
    rows = list(values)
    kept = {range(len(rows))[place] for place in ci} if rows else set()
    is_one = isinstance(names, str) and "," not in names
    cases = [
        pytest.param(*([row] if is_one else row), marks=() if place in kept else pytest.mark.long)  # type: ignore[misc] # a row of many
        for place, row in enumerate(rows)
    ]
    return pytest.mark.parametrize(names, cases, ids=ids, indirect=indirect)
