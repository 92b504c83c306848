"""One row of the table of figures, how times are taken in turn, and what the table says of the one before it."""

from __future__ import annotations

import os
import platform
import re
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).with_name("FIGURES.md")
ROUNDS = 9
WORSE = 1.10
"""A ratio is marked if it is this many times the one of the table before."""
HEAD = ["what", "measured", "beside", "ratio", "bar", "met", "since", "load"]


class Figure(NamedTuple):
    """One row of the table. `value` is its ratio as a number, `load` the load average of one minute when it was found."""

    what: str
    measured: str
    beside: str = ""
    ratio: str = ""
    bar: str = ""
    is_met: bool | None = None
    value: float | None = None
    load: float = 0.0

    def cells(self, before: dict[str, float]) -> list[str]:
        """Return the row's cells as text; `before` has the ratios of the table before, by row."""
        met = {None: "", True: "yes", False: "**no**"}[self.is_met]
        return [*self[:5], met, self.since(before), f"{self.load:.1f}"]

    def since(self, before: dict[str, float]) -> str:
        """Return how the ratio has changed since the table before; one that got worse by more than a tenth is marked."""
        earlier = before.get(_key(self.what, self.beside))
        if earlier is None or self.value is None:
            return ""
        change = self.value / earlier
        words = f"{change - 1:+.0%}"
        return f"**worse: {words}**" if change > WORSE else words


def _key(what: str, other: str) -> str:
    """Return what names a row and what it stands beside: another floor makes another ratio."""
    return f"{what} | {other.rpartition(': ')[0]}"


def ratios(table: str) -> dict[str, float]:
    """Return the ratios of a table, as numbers, by row."""
    found = {}
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        ratio = re.match(r"([\d.,]+) x", cells[3]) if len(cells) > 3 else None
        if ratio is not None:
            found[_key(cells[0], cells[2])] = float(ratio[1].replace(",", ""))
    return found


def committed() -> dict[str, float]:
    """Return the ratios of the table in the last commit; none without git."""
    return ratios(_git("show", f"HEAD:{TABLE.relative_to(REPOSITORY)}"))


def tree() -> str:
    """Return which commit is measured, in words, and whether files differ from it."""
    commit = _git("rev-parse", "--short=12", "HEAD").strip()
    changed = _git("status", "--porcelain", "--", ".", f":!{TABLE.relative_to(REPOSITORY)}").strip()
    if not commit:
        return "a tree without a commit"
    return f"commit {commit}{', **with changes that are not committed**' if changed else ''}"


def _git(*words: str) -> str:
    """Return what git prints; nothing if it fails or is not there."""
    try:
        return subprocess.run(
            ["git", *words], cwd=REPOSITORY, capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""


def seconds(command: Sequence[str], **more: object) -> float:
    """Return the wall time of a command, in seconds."""
    began = time.perf_counter()
    subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True, **more)  # type: ignore[call-overload]
    return time.perf_counter() - began


def in_turn(*measured: Callable[[], float], rounds: int = ROUNDS) -> list[list[float]]:
    """Measure several things one after the other, again and again, after one round to warm up; return the values of each.

    Every second round goes backwards, so that none is always the one after another.
    """
    found: list[list[float]] = [[] for _ in measured]
    for number in range(-1, rounds):
        order = range(len(measured)) if number % 2 else range(len(measured) - 1, -1, -1)
        for which in order:
            value = measured[which]()
            if number >= 0:
                found[which].append(value)
    return found


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Return the quartiles of some values; of fewer than four the least and the most."""
    if len(values) < 4:
        return min(values), max(values)
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def ms(value: float) -> str:
    """Return seconds as milliseconds."""
    return f"{value * 1000:,.0f} ms"


def spread_ms(values: Sequence[float]) -> str:
    """Return the median of some times, with their spread, in milliseconds."""
    low, high = spread(values)
    return f"{ms(statistics.median(values))} ({low * 1000:,.0f} to {high * 1000:,.0f})"


def beside(
    what: str, ours: Sequence[float], other: str, floor: Sequence[float], most: float | None = None
) -> Figure:
    """Return times beside others that were measured in turn with them; `most` is the ratio that they may have.

    The ratio is the median of those of the rounds: what slows a whole round down is in both of its times.
    """
    each = [mine / theirs for mine, theirs in zip(ours, floor, strict=True)]
    ratio, (low, high) = statistics.median(each), spread(each)
    bar, is_met = (f"≤ {most:g} x", ratio <= most) if most else ("", None)
    words = f"{ratio:.2f} x ({low:.2f} to {high:.2f})"
    return Figure(what, spread_ms(ours), f"{other}: {spread_ms(floor)}", words, bar, is_met, ratio)


def at_most(what: str, values: Sequence[float], most_s: float, other: str = "") -> Figure:
    """Return times that have a bar of their own, in seconds."""
    return Figure(what, spread_ms(values), other, "", f"≤ {ms(most_s)}", statistics.median(values) <= most_s)


def page(figures: Sequence[Figure], before: dict[str, float]) -> str:
    """Return the table as Markdown, with the words before it."""
    rows = [HEAD, ["---"] * len(HEAD), *(figure.cells(before) for figure in figures)]
    head = f"""\
# Figures

Written by `make bench` on {time.strftime("%Y-%m-%d")}, of {tree()}; do not edit.

{os.cpu_count()} cores of {platform.machine()}, Python {platform.python_version()}. Nothing here was run on a GPU. \
Ours and what it stands beside are measured in turn, in one run. Times are medians, with their quartiles; a ratio is the \
median of the rounds' ratios. *Since* is how a ratio differs from the table that was committed before: more than a tenth is \
marked. The client, the SSH host and the training share the cores of one machine, and whatever else runs there: *load* is \
its load average of one minute, our own included. A ship is a stage of a launch, on a connection that is open; what it \
stands beside is a whole command, which connects first.

"""
    return head + "".join(f"| {' | '.join(row)} |\n" for row in rows)
