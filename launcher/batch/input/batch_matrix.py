"""Multiply the matrix of a batch, from its file or `--grid`, into points. A point has one value for each key."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from launcher.base.toml import inline, parse_toml
from launcher.batch.input.batch_definition import MAX_ITEMS
from launcher.batch.input.batch_mistakes import Mistakes
from launcher.errors import BadFileError, UsageError

SEEDS, SEED, EXCLUDE = "seeds", "seed", "exclude"
_TABLES_OF_JOBS = ("batch", "data", "settings", "variables", "verify")
"""The tables of a job.

A matrix value that is a table sets several keys. Under one of these names, they are keys of the job's table
with that name. Under any other name, they are matrix keys.
"""

Point = dict[str, Any]


class Matrix(NamedTuple):
    """The points of a matrix. `written_as` maps each key of a point to the matrix key that sets it.
    `written_as` also has the keys of an invalid list, but no point has them.
    """

    points: list[Point]
    written_as: Mapping[str, str]


def grid_of(words: Sequence[str]) -> Point:
    """Return the matrix of `KEY=V1,V2` words. A repeated key adds values. Raises UsageError."""
    matrix: Point = {}
    for word in words:
        key, values = _grid_values(word)
        if key == SEEDS and (key in matrix or len(values) != 1):
            raise UsageError(f"--grid {word}: expected one number, e.g. --grid seeds=3 for --grid seed=0,1,2")
        matrix[key] = values[0] if key == SEEDS else [*matrix.get(key, []), *values]
    return matrix


def _grid_values(word: str) -> tuple[str, list[Any]]:
    """Split `KEY=V1,V2` into its key and its values. A value is TOML or a bare word."""
    key, separator, written = word.partition("=")
    values = [one.strip() for one in written.split(",")]
    if not separator or not key.strip() or not all(values):
        raise UsageError(f"--grid {word}: expected KEY=V1,V2, e.g. --grid settings.learning_rate=1e-4,3e-4")
    return key.strip(), [_value(one) for one in values]


def _value(written: str) -> Any:
    try:
        return parse_toml(f"value = {written}", "--grid")["value"]
    except BadFileError:
        return written  # a bare word is text


def flat(table: Mapping[str, Any], start: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted keys and values of nested tables, e.g. `settings.KEY` for `[matrix.settings]`."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from flat(value, f"{start}{key}.")
        else:
            yield f"{start}{key}", value


def multiply(matrix: Mapping[str, Any], mistakes: Mistakes) -> Matrix:
    """Return every combination of a matrix's values that is not excluded.

    Without a matrix, return one empty point.
    """
    axes, written_as = _axes(matrix, mistakes)
    count = 1
    for values in axes.values():
        count *= len(values)
    if count > MAX_ITEMS * 10:  # before the combinations are built
        mistakes.add("matrix", f"{count:,} combinations: a batch has at most {MAX_ITEMS:,} items")
        mistakes.tell()
    excluded = _excluded(matrix.get(EXCLUDE, []), written_as, mistakes)
    points: list[Point] = []
    is_used = [False] * len(excluded)
    for chosen in itertools.product(*axes.values()):
        point = {key: value for part in chosen for key, value in part.items()}
        hits = [_has(point, one) for one in excluded]
        is_used = [is_one or hit for is_one, hit in zip(is_used, hits, strict=True)]
        if not any(hits):
            points.append(point)
    if not points:
        mistakes.add(f"matrix.{EXCLUDE}", "leaves no combination: nothing would be run")
        return Matrix([{}], written_as)
    for one, is_one in zip(excluded, is_used, strict=True):
        if not is_one:
            shown = ", ".join(f"{key} = {inline(value)}" for key, value in one.items())
            mistakes.note(f"matrix.{EXCLUDE}", f"no combination has {shown}, so this excludes nothing")
    return Matrix(points, written_as)


def _has(point: Point, values: Mapping[str, Any]) -> bool:
    return all(key in point and point[key] == value for key, value in values.items())


def _axes(matrix: Mapping[str, Any], mistakes: Mistakes) -> tuple[dict[str, list[Point]], dict[str, str]]:
    """Return the lists of a matrix by matrix key, and for each key of a point the matrix key that sets it.

    Each value of a list is a part of a point: the keys that it sets, with their values.
    """
    axes: dict[str, list[Point]] = {}
    written_as: dict[str, str] = {}
    for written, values in flat(matrix):
        if written == EXCLUDE:
            continue
        place = f"matrix.{written}"
        key = SEED if written == SEEDS else written
        parts: list[Point] = []
        if written == SEEDS and isinstance(values, int) and not isinstance(values, bool) and values > 0:
            parts = [{SEED: seed} for seed in range(values)]
        elif not isinstance(values, list):
            mistakes.add(place, f"{inline(values)}: expected a list of values")
        elif not values:
            mistakes.add(place, "is empty: nothing would be run")
        else:
            parts = [_part(key, value) for value in values]
            _note_twins(place, values, mistakes)
        for one in dict.fromkeys([*(key for part in parts for key in part)] or [key]):
            if one in written_as:
                mistakes.add(place, f"'{one}' is set by matrix.{written_as[one]} too: give it once")
            written_as[one] = written
        if parts:
            axes[written] = parts
    if matrix and not written_as:
        mistakes.add("matrix", "has no key with values: nothing would be multiplied")
    return axes, written_as


def _part(key: str, value: Any) -> Point:
    """Return the keys that a value sets: its own key, or the keys of a table."""
    if not isinstance(value, dict):
        return {key: value}
    return dict(flat(value, f"{key}." if key in _TABLES_OF_JOBS else ""))


def _note_twins(place: str, values: Sequence[Any], mistakes: Mistakes) -> None:
    """Note the values that occur several times in a list."""
    written = Counter(inline(value) for value in values)
    for value, times in written.items():
        if times > 1:
            mistakes.note(place, f"{value} is listed {times} times, so it is run {times} times")


def _excluded(written: Any, known: Mapping[str, str], mistakes: Mistakes) -> list[Point]:
    """Return the excluded combinations, each as its values."""
    if not isinstance(written, list) or not all(isinstance(one, dict) and one for one in written):
        mistakes.add(
            f"matrix.{EXCLUDE}", "expected a list of tables, e.g. exclude = [{ seed = 1, steps = 100 }]"
        )
        return []
    excluded = [dict(flat(one)) for one in written]
    for key in dict.fromkeys(key for one in excluded for key in one if key not in known):
        mistakes.add(f"matrix.{EXCLUDE}", f"'{key}' is no key of the matrix: {', '.join(known)}")
    return [one for one in excluded if all(key in known for key in one)]
