"""The figures that a terminal shows: sizes, durations and measured values."""

from __future__ import annotations

import math


def size_text(size: float) -> str:
    """Format a size in bytes with a decimal unit: 41.0 kB, 1.2 GB."""
    from rich import filesize  # `launch --help` starts without rich

    return filesize.decimal(round(size))


def age_text(seconds: float) -> str:
    """Format a duration in its largest unit: 14 m, 2 h."""
    seconds = max(0, int(min(seconds, 1e12)))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def clock_text(seconds: float) -> str:
    """Format seconds as 9:40 or 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def value_text(value: float) -> str:
    """Format a metric with four digits, thousands with commas, and non-finite values as nan, inf or -inf."""
    if not math.isfinite(value):
        return str(value)
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e7 else f"{value:.4g}"
