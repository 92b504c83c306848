"""What a training leaves to be measured: the ledger of scripts/witness.py, and its losses."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from pathlib import Path
from typing import Any, NamedTuple


class Ledger(NamedTuple):
    """What witness.py wrote: its lines, of all processes of a run."""

    lines: list[dict[str, Any]]

    @property
    def steps(self) -> list[dict[str, Any]]:
        """The steps, also those at which a scaler spared the optimizer."""
        return [line for line in self.lines if line["kind"] == "step"]

    def step_s(self, warm_steps: int) -> float:
        """Return the median time of a step, after the first ones, in seconds."""
        clocks = [line["clock"] for line in self.steps][warm_steps:]
        return statistics.median(after - before for before, after in itertools.pairwise(clocks))

    @property
    def optimizer(self) -> str | None:
        """The optimizer that stepped, e.g. `AdamW, fused`."""
        return next((line["optimizer"] for line in self.steps if line["optimizer"]), None)

    @property
    def peak_gb(self) -> float | None:
        """The most memory that tensors had on the card, in GB; None on a CPU."""
        peaks = [line["peak_bytes"] for line in self.steps if line["peak_bytes"] is not None]
        return max(peaks) / 1e9 if peaks else None


def read_ledger(path: Path) -> Ledger:
    """Read a ledger; one that is not there yet has no lines."""
    return Ledger(read_lines(path))


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read a file with an object of JSON a line; a last line that is being written does not count."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def losses(metrics: list[dict[str, Any]]) -> dict[int, float]:
    """Return the loss of each step in lines of `launch metrics --json`, by the latest attempt."""
    return {one["step"]: float(one["value"]) for one in metrics if one["name"] == "loss"}


def distance(one: dict[int, float], other: dict[int, float]) -> float | None:
    """Return the largest distance of two curves of the loss, as a share of the first loss; None if they share no step.

    Infinite if a loss is not finite.
    """
    steps = one.keys() & other.keys()
    if not steps:
        return None
    first = other[min(other)]
    gaps = [abs(one[step] - other[step]) / first for step in steps]
    return max(gaps) if all(map(math.isfinite, gaps)) else math.inf
