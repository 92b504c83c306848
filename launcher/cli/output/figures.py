"""Numbers as text: sizes, durations and measured values."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from launcher.base.meter import Moved

MAX_S = 360_000.0
"""The longest time left that is shown: 100 hours."""


def size_text(size: float) -> str:
    """Format a size in bytes with a decimal unit: 41.0 kB, 1.2 GB."""
    from rich import filesize  # imported here: `launch --help` starts without rich

    return filesize.decimal(round(size))


def transfer_text(moved: Moved) -> str:
    """Format a transfer's progress: 1.2 of 1.5 GB  214.0 MB/s  eta 0:02   data/train.bin.

    If the total is unknown, only the size moved so far is shown.
    """
    done, total = size_text(moved.done), size_text(moved.total)
    figure, _, unit = done.partition(" ")
    of_total = f"{figure if unit == total.partition(' ')[2] else done} of {total}"
    words = [of_total if moved.total else done]
    words += [f"{size_text(moved.bytes_per_s)}/s"]
    if moved.eta_s is not None:
        words.append(f"eta {clock_text(min(moved.eta_s, MAX_S))}")
    return " ".join(filter(None, (moved.doing, f"{'  '.join(words)}   {moved.name}")))


def age_text(seconds: float) -> str:
    """Format a duration in its largest unit: 14 m, 2 h."""
    seconds = max(0, int(min(seconds, 1e12)))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def duration_text(seconds: float) -> str:
    """Format a duration: 0:42, 16:02, 2 h 10 m, 3 d 4 h."""
    if seconds < 3600:
        return clock_text(min(max(0.0, seconds), 3599))
    hours, minutes = divmod(int(min(seconds, 1e12)) // 60, 60)
    return f"{hours} h {minutes} m" if hours < 24 else f"{hours // 24} d {hours % 24} h"


def clock_text(seconds: float) -> str:
    """Format seconds as 9:40 or 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}:{rest:02}"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


def value_text(value: float) -> str:
    """Format a metric with four digits, thousands with commas, and non-finite values as nan, inf or -inf."""
    if not math.isfinite(value):
        return str(value)
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e7 else f"{value:.4g}"
