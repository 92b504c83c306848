"""What a program did, by the witness inside it, and the readings that launch may then tell."""

from __future__ import annotations

import json
import math
import re
import statistics
from bisect import bisect
from collections.abc import Iterable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+(?:e[-+]?\d+)?|e[-+]?\d+)(?![\w.]*\w)")
"""A number that is not whole: a whole one may be any count."""


class Reading(NamedTuple):
    """A value of a metric. `step` is None where it has none."""

    step: int | None
    name: str
    value: float


class Ledger(NamedTuple):
    """What was seen inside a program: its optimizer steps, its losses, and what it gave to its own logger."""

    updates: int
    losses: list[tuple[int, float]]
    """Of each backward pass: the optimizer steps before it, and its loss."""
    logged: list[Reading]
    outputs: Path
    """The folder with the files that the program wrote."""
    log: str
    """What it printed."""

    def by_update(self) -> list[float]:
        """Return the loss of each optimizer step: the mean of its backward passes."""
        found: dict[int, list[float]] = {}
        for before, loss in self.losses:
            found.setdefault(before, []).append(loss)
        return [statistics.fmean(found[before]) for before in sorted(found)]


def read(path: Path, outputs: Path, log: str) -> Ledger:
    """Read what the witness wrote; nothing for a program that never came to torch."""
    lines: list[dict[str, Any]] = (
        [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    )
    updates, losses, logged = 0, [], []
    for line in lines:
        if line["kind"] == "update":
            updates += 1
        elif line["kind"] == "backward" and line["loss"] is not None:
            losses.append((updates, line["loss"]))
        elif line["kind"] == "logged":
            step = None if line["step"] is None else int(line["step"])
            logged += [Reading(step, name, value) for name, value in line["values"].items()]
    return Ledger(updates, losses, logged, outputs, log)


def told(lines: Iterable[str]) -> Iterator[Reading]:
    """Read the output of `launch metrics --json`, without what launch measures itself: the host's figures and the pace."""
    for line in map(json.loads, lines):
        if not line["name"].startswith("host/") and line["name"] != "tokens_per_s":
            yield Reading(line["step"], line["name"], float(line["value"]))


def is_same(shown: float, true: float) -> bool:
    """Whether a printed number is a true one, rounded or cut at the last digit that it shows."""
    if not (math.isfinite(shown) and math.isfinite(true)):
        return repr(shown) == repr(true)
    exponent = Decimal(repr(shown)).as_tuple().exponent
    assert isinstance(exponent, int)
    return abs(shown - true) <= max(0.51 * 10.0**exponent, 2e-6 * abs(true))


class Verdict(NamedTuple):
    """What launch told, held against what the ledger allows.

    `absent`: launch does not tell it, although a number that may be it is in the output. `unprinted`: no such number is there.
    """

    right: int
    absent: int
    unprinted: int
    wrong: list[Reading]


def judge(shown: Iterable[Reading], allowed: Iterable[Reading], log: str) -> Verdict:
    """Hold each told reading against the allowed ones: its value must be there under its name and step.

    A reading without a step must have its value anywhere under its name.
    """
    places: dict[tuple[int | None, str], list[float]] = {}
    names: dict[str, list[float]] = {}
    for step, name, value in allowed:
        places.setdefault((step, name), []).append(value)
        names.setdefault(name, []).append(value)
    right, wrong, used = 0, [], set()
    for reading in shown:
        values = names.get(reading.name, []) if reading.step is None else places.get(reading[:2], [])
        if any(is_same(reading.value, value) for value in values):
            right += 1
            used.add(reading[:2] if reading.step is not None else (reading.value, reading.name))
        else:
            wrong.append(reading)
    untold = max(0, len(places) - len(used))
    printed = sorted(float(text) for text in set(NUMBER.findall(log)))
    values = [values for place, values in places.items() if place not in used]
    unprinted = min(untold, sum(not any(is_printed(value, printed) for value in some) for some in values))
    return Verdict(right, untold - unprinted, unprinted, wrong)


def is_printed(value: float, printed: list[float]) -> bool:
    """Whether one of the numbers of a log, in ascending order, may be a value."""
    far = max(0.051, 0.01 * abs(value))
    near = printed[bisect(printed, value - far) : bisect(printed, value + far)]
    return not math.isfinite(value) or any(is_same(number, value) for number in near)
