"""Judges the steps of a training by their figures, one after another. Plain Python: it knows nothing of torch."""

from __future__ import annotations

import math
import statistics
from typing import Any, Dict, List, NamedTuple, Optional

from ..json_values import scalar
from .rules import (
    FINAL_STEP_RULES,
    FIRST_LOSSES,
    RULES,
    SETTLING_SKIPS,
    SKIP_WINDOW,
    SPOILING_RULES,
    Figures,
    Trip,
)


class Streak(NamedTuple):
    """Bad steps in a row by one rule: how many, and the first of them."""

    steps: int
    since: int


class Judge:
    """Counts bad steps in a row for each rule, and returns a trip when a rule's limit is reached."""

    def __init__(self) -> None:
        self.steps = self.good_steps = self.skips = 0
        self.has_moved = False
        self.loss: Optional[float] = None
        self.loss_first: Optional[float] = None
        self.recovered: Optional[Dict[str, Any]] = None  # non-finite losses that ended with the last step
        self.last = Figures()
        self._first_losses: List[float] = []
        self._settled_skips: List[
            bool
        ] = []  # of the latest steps since the scaler settled: was each one skipped?
        self._streaks: Dict[str, Streak] = {}

    def judge_step(self, step: int, figures: Figures) -> Optional[Trip]:
        """Judge a step by its figures; return a trip if the attempt ends here."""
        self.last = figures
        self.steps += 1
        self.skips += figures.skipped
        self.has_moved = self.has_moved or (bool(figures.moved) and not figures.skipped)
        self._mark("weights", not figures.finite, step)
        self._judge_scaler(figures, step)
        self._mark("base", figures.base_moved, step)
        if figures.gradient:
            self._mark("zero", figures.gradient == "zero", step)
        if figures.loss is not None:
            self._mark_loss(figures.loss, step)
        if figures.moved is not None and figures.is_rated and not figures.skipped:
            self._mark("still", not figures.moved, step)
        if self.loss is not None and self.loss_first is not None:
            self._mark("leap", figures.leapt and not self.loss < self.loss_first, step)
        self.good_steps += not self._streaks and not figures.skipped
        return self._trip(step)

    def judge_logged_loss(self, step: int, loss: float) -> Optional[Trip]:
        """Judge a loss that the script logged, if the guard cannot see one."""
        self._mark_loss(loss, step)
        return self._trip(step)

    def judge_end(self, step: int) -> Optional[Trip]:
        """Return a trip if the training must not end like this, although no rule's limit is reached."""
        if self.skips and self.skips == self.steps:
            self._streaks.setdefault("gradients", Streak(self.skips, step - self.steps + 1))
        elif self._streaks.keys() == {"gradients"} and self.last.skipped:
            return None  # the scaler skipped the overflow, and the weights are sound
        return self._trip(step, is_end=True)

    def is_suspect(self, rule: str) -> bool:
        """Return whether a sample broke a rule twice in a row, so that everything should be looked at."""
        streak = self._streaks.get(rule)
        return streak is not None and streak.steps >= 2

    def reset(self, rule: str) -> None:
        """Start a rule's count from zero."""
        self._streaks.pop(rule, None)

    @property
    def spoiled_by(self) -> Optional[str]:
        """What may have spoiled the weights in the last step, if anything."""
        return next((RULES[rule].text for rule in SPOILING_RULES if rule in self._streaks), None)

    def _judge_scaler(self, figures: Figures, step: int) -> None:
        """Judge overflows. While a scaler settles, skipped steps are normal."""
        has_room = figures.scale is None or figures.scale >= 1.0
        is_settling = not self.has_moved and self.skips <= SETTLING_SKIPS and has_room
        is_overflow = not is_settling if figures.skipped else figures.gradient == "bad"
        self._mark("gradients", is_overflow, step)
        if not is_settling:
            self._settled_skips = [*self._settled_skips, figures.skipped][-SKIP_WINDOW:]
        is_full = len(self._settled_skips) == SKIP_WINDOW
        is_often = is_full and 2 * sum(self._settled_skips) >= SKIP_WINDOW
        self._mark("collapse", not is_settling and (is_often or not has_room), step)

    def _mark_loss(self, loss: float, step: int) -> None:
        is_finite = math.isfinite(loss)
        streak = self._streaks.get("loss")
        if is_finite and streak is not None:
            self.recovered = {
                "since": streak.since,
                "steps": streak.steps,
                "loss": scalar("loss", self.loss),
            }
        self._mark("loss", not is_finite, step)
        if is_finite and len(self._first_losses) == FIRST_LOSSES:
            self._mark("explosion", loss > 10 * abs(statistics.median(self._first_losses)) + 10, step)
        elif is_finite:
            self._first_losses.append(loss)
        if not self.last.gradient:
            self._mark("zero", loss == 0.0, step)
        self.loss = loss
        if self.loss_first is None:
            self.loss_first = loss

    def _mark(self, rule: str, is_bad: bool, step: int) -> None:
        if is_bad:
            steps, since = self._streaks.get(rule, Streak(0, step))
            self._streaks[rule] = Streak(steps + 1, since)
        else:
            self._streaks.pop(rule, None)

    def _trip(self, step: int, is_end: bool = False) -> Optional[Trip]:
        """Return the trip of the first rule whose limit is reached."""
        for name, rule in RULES.items():
            streak = self._streaks.get(name)
            if streak is None:
                continue
            if streak.steps >= rule.steps or (is_end and name in FINAL_STEP_RULES):
                return self._describe(name, step, streak.steps)
        return None

    def _describe(self, name: str, step: int, count: int) -> Trip:
        """Return the trip by a rule, with the figures that explain it."""
        rule = RULES[name]
        since = min(
            # A high loss shows what the step before did to the weights.
            max(0, streak.since - 1) if other == "explosion" else streak.since
            for other, streak in self._streaks.items()
            if RULES[other].kind == rule.kind
        )
        values = {
            "loss": self.loss,
            "loss_first": self.loss_first,
            "learning_rate": self.last.rate,
            "scale": self.last.scale,
            "skipped": self.skips,
        }
        figures = {key: scalar(key, value) for key, value in values.items() if value is not None}
        listed = ", ".join(
            f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
            for key, value in figures.items()
        )
        duration = (
            "at the end" if count < rule.steps else f"{count} steps in a row" if count > 1 else "at once"
        )
        why = f"{rule.kind}: {rule.text}, {duration}, since step {since} ({listed})"
        return Trip(name, rule.kind, why, step, since, figures)
