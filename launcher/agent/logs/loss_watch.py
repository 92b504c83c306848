"""Watch the training loss of a log: its last value, and whether it diverged."""

from __future__ import annotations

import math
import re
from typing import Dict, NamedTuple, Optional

MAX_CHARS = 500
_PERPLEXITIES = ("ppl", "perplexity", "train_ppl", "train_perplexity")
_BEFORE_LOSS = re.compile(r"[^{]{0,200}?(?=(?:\b|_)loss)", re.IGNORECASE)
_COUNTER = re.compile(r"\b(?:step|iter(?:ation)?|epoch|ep|update)\b", re.IGNORECASE)
_OF_TRAINING = re.compile(r"\bgrad(?:ient)?[_ ]?norm", re.IGNORECASE)
_SETTING = re.compile(
    r"\b(?:lr|learning[_ -]rate|trial|config(?:uration)?|candidate|combination|hparams|setting)s?(?![a-z])",
    re.IGNORECASE,
)
_PART = re.compile(r"\b(?:folds?|seeds?|splits?)(?![a-z])", re.IGNORECASE)


class Divergence(NamedTuple):
    """A loss that became non-finite: its first line, and the step after the last finite loss."""

    line: str
    since: int

    @property
    def why(self) -> str:
        """The cause, in words."""
        return "the loss was not finite in two lines of the log in a row"


class LastLoss(NamedTuple):
    """The last training loss of a log: its name, its value, its step if the log gives one, and its line.

    If `is_certain`, a non-finite value means that the training diverged. A loss without a step, an epoch or a
    bar may be something else.
    """

    name: str
    value: float
    step: Optional[int]
    line: str
    is_certain: bool = True

    @property
    def is_finite(self) -> bool:
        """Whether the value is a finite number."""
        return math.isfinite(self.value)


def is_of_sweep(line: str) -> bool:
    """Whether a line has the loss of one of several settings that a script tries: `lr=10: loss nan`."""
    before = _before_loss(line)
    return bool(_SETTING.search(before)) and not _COUNTER.search(line)


def _is_of_part(line: str) -> bool:
    """Whether the line begins with a setting or a part, such as `fold 3`.

    Its loss then belongs to one of several trainings.
    """
    before = _before_loss(line)
    leading = _SETTING.search(before) or _PART.search(before)
    counter = _COUNTER.search(before)
    return leading is not None and (counter is None or leading.start() < counter.start())


def _before_loss(line: str) -> str:
    found = _BEFORE_LOSS.match(line)
    return found[0] if found else ""


class LossWatch:
    """Two non-finite training losses in a row are a divergence; `divergence` is the first of the log.

    A non-finite gradient norm alone is not one: a scaler's first steps overflow. Evaluations and the losses
    of a sweep are ignored. A non-finite loss without a step, an epoch or a bar is no divergence: it may be
    something else.
    """

    def __init__(self) -> None:
        """Begin before the first loss."""
        self.last: Optional[LastLoss] = None
        self.divergence: Optional[Divergence] = None
        self._suspect: Optional[Divergence] = None
        self._good_step = 0
        self._is_placed_lost = False

    def take(self, name: str, value: float, step: Optional[int], line: str, place: Optional[str]) -> None:
        """Take in the next training loss; `place` names the counter, the epoch or the bar of its line."""
        is_finite = math.isfinite(value)
        is_tried_before = self.last is not None and self.last.is_finite
        if not is_finite and place is None and is_tried_before and is_of_sweep(line):
            return
        is_placed = place is not None or _COUNTER.search(line) or _OF_TRAINING.search(line)
        titled = "%s %s" % (place, line) if place is not None and place.startswith("bar ") else line
        is_certain = bool(is_placed) and (is_finite or not _is_of_part(titled))
        self._is_placed_lost = not is_finite and (is_certain or self._is_placed_lost)
        self.last = LastLoss(name, value, step, line.strip()[:MAX_CHARS], is_finite or self._is_placed_lost)
        if is_finite:
            self._suspect = None
            self._good_step = self._good_step if step is None else step
        elif not is_certain:
            return
        elif self._suspect is None:
            self._suspect = Divergence(self.last.line, self._good_step + 1)
        elif self.divergence is None:
            self.divergence = self._suspect

    def take_perplexity(self, values: Dict[str, float], step: int, line: str) -> None:
        """Take in a perplexity as the training's loss if the log has no loss. A NaN makes the loss uncertain.

        An infinite perplexity is ignored: a large finite loss gives one.
        """
        name = next((name for name in _PERPLEXITIES if name in values), None)
        is_only = self.last is None or self.last.name in _PERPLEXITIES
        if name is not None and is_only and not math.isinf(values[name]):
            value = values[name]
            self.last = LastLoss(name, value, step, line.strip()[:MAX_CHARS], not math.isnan(value))
