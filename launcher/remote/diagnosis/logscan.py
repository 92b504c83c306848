"""Read metrics from the log of a script that does not use the worker: Hugging Face's lines and tqdm's step counter.

    {'loss': '1.234', 'grad_norm': '0.5', 'learning_rate': '0.001', 'epoch': '0.1'}
     33%|###3      | 100/300 [00:10<00:20, 9.9it/s]

transformers prints str(dict) with every float as a quoted "%.4g"; older versions print bare numbers. Its default filter
prints a NaN loss as 0, so a loss of exactly zero with a non-finite gradient norm is read as NaN.

Two non-finite losses in a row are a divergence. A non-finite gradient norm alone is not: a scaler's first steps overflow.
"""

from __future__ import annotations

import ast
import math
import re
from typing import NamedTuple

MAX_LINE = 20_000
MOST_CHARS = 500
_LINE = re.compile(r"\{['\"].{3,}\}\s*$")
_BAR = re.compile(
    r"\s*\d{1,3}%\|[^|]*\|\s*(\d{1,12})/\d{1,12} \["
)  # a Trainer's bar; other bars begin with a name
_BARE_NON_FINITE = re.compile(r"(?<=: )(-?)(nan|inf)(?=[,}])")
_KNOWN = {"loss", "grad_norm", "learning_rate", "eval_loss", "train_loss", "train_runtime"}


class Divergence(NamedTuple):
    """A loss that became non-finite: its first line, and the step after the last finite one."""

    line: str
    since: int


class LogScanner:
    """Read a log piece by piece and find its metric lines. Lines longer than MAX_LINE bytes are ignored.

    `divergence` is the log's first divergence, None until there is one.
    """

    def __init__(self) -> None:
        """Start before the first line."""
        self._line = bytearray()
        self._is_too_long = False
        self._step: int | None = None
        self._count = 0
        self._suspect: Divergence | None = None
        self._good_step = 0
        self.divergence: Divergence | None = None

    def feed(self, piece: bytes) -> list[tuple[int, dict[str, float | str]]]:
        """Take the next bytes of the log; return (step, values) of each metric line that they complete.

        The step comes from the last progress bar. Without a bar, the metric lines are counted.
        """
        metrics = []
        for number, part in enumerate(re.split(rb"[\r\n]", piece)):
            if number:
                line = "" if self._is_too_long else self._line.decode("utf-8", "replace")
                values = self._read(line)
                self._line.clear()
                self._is_too_long = False
                if values:
                    self._count += 1
                    step = self._count if self._step is None else self._step
                    self._judge(line, step, values)
                    metrics.append((step, values))
            self._is_too_long = self._is_too_long or len(self._line) + len(part) > MAX_LINE
            if not self._is_too_long:
                self._line += part
        return metrics

    def _judge(self, line: str, step: int, values: dict[str, float | str]) -> None:
        loss = values.get("loss")
        if not isinstance(loss, float):
            return  # an evaluation, or the summary
        if math.isfinite(loss):
            self._suspect, self._good_step = None, step
        elif self._suspect is None:
            self._suspect = Divergence(line.strip()[:MOST_CHARS], self._good_step + 1)
        elif self.divergence is None:
            self.divergence = self._suspect

    def _read(self, line: str) -> dict[str, float | str]:
        bar = _BAR.match(line)
        if bar:
            self._step = int(bar[1])
        start = line.find("{")
        if start < 0 or not _LINE.match(line[start:]):
            return {}
        try:
            printed = ast.literal_eval(_BARE_NON_FINITE.sub(r"'\1\2'", line[start:].strip()))
        except (ValueError, TypeError, OverflowError, SyntaxError, MemoryError, RecursionError):
            return {}  # an ordinary line that looks like a dict
        if not isinstance(printed, dict) or not _KNOWN & printed.keys():
            return {}
        values: dict[str, float | str] = {}
        for key, value in printed.items():
            number = _number(value)
            if isinstance(key, str) and number is not None:
                values[key] = number
        norm = values.get("grad_norm")
        if values.get("loss") == 0.0 and isinstance(norm, float) and not math.isfinite(norm):
            values["loss"] = math.nan
        return values


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None
