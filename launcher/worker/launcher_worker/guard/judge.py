"""Judge the steps of a training by their figures, one after another. Plain Python, without torch."""

from __future__ import annotations

import math
from typing import Dict, List, NamedTuple, Optional

from ..json_values import scalar
from .losses import LossCourse
from .rules import (
    DEAD_AFTER_A_LEAP,
    FINAL_STEP_RULES,
    ROUNDED,
    RULES,
    SETTLING_SKIPS,
    SKIP_WINDOW,
    SPOILING_RULES,
    STEPS_AFTER_A_JUMP,
    UNLABELLED,
    WARNING_RULES,
    ZERO_SHARE,
    ZERO_STEPS,
    Figures,
    Rule,
    Trip,
)


class Streak(NamedTuple):
    """Bad steps in a row by one rule: their number, the first of them, and whether the weights leapt just before."""

    steps: int
    since: int
    has_leapt: bool = False


class Judge:
    """Counts bad steps in a row for each rule, and returns a trip when a rule's limit is reached.

    `planned_steps` is the length of the training, if known. Steps without any gradient first cause a
    `warning`: they may belong to a policy that earns no reward yet.
    """

    def __init__(self, planned_steps: Optional[int] = None) -> None:
        self.plan(planned_steps)
        self.warning: Optional[Trip] = None  # of the last judged step
        self.steps = self.good_steps = self.skips = 0
        self.has_moved = self.has_left_start = self._has_had_gradient = False
        self.losses = LossCourse()
        # a series of non-finite losses that has just ended
        self.recovered: Optional[Dict[str, object]] = None
        self.last = Figures()
        self.expects_rewards = False  # whether the script will log rewards
        self._rewards_differed_at = -1
        self._leapt_at = -math.inf
        self._largest_gradient = 0.0
        # whether each of the latest steps since the scaler settled was skipped
        self._settled_skips: List[bool] = []
        self._streaks: Dict[str, Streak] = {}

    def plan(self, steps: Optional[int]) -> None:
        """Note the length of the training; None if it is unknown."""
        share = ZERO_STEPS if steps is None else math.ceil(ZERO_SHARE * steps)
        self._zero_limit = max(RULES["zero"].steps, share)

    def judge_step(self, step: int, figures: Figures) -> Optional[Trip]:
        """Judge a step by its figures; return a trip if the attempt ends here."""
        self.last = figures
        self.steps += 1
        self.skips += figures.skipped
        self._has_had_gradient = self._has_had_gradient or figures.gradient != "zero"
        self.has_moved = self.has_moved or (bool(figures.moved) and not figures.skipped)
        self._mark("weights", not figures.finite, step)
        self._judge_scaler(figures, step)
        self._mark("base", figures.base_moved, step)
        if figures.gradient:
            self._mark("zero", figures.gradient == "zero", step)
        if figures.loss is not None:
            self._mark_loss(figures.loss, step)
        if figures.rate is not None:
            self._mark("rest", figures.rate == 0 and not figures.moved, step)
        self._mark("astray", figures.is_astray, step)
        self._mark("left", figures.are_left, step)
        self._judge_movement(figures, step)
        if figures.leapt:
            self._leapt_at = step
        if self.losses.last is not None and math.isfinite(self.losses.last):
            self._mark("leap", figures.leapt and self.losses.has_doubled, step)
        self.good_steps += not self._streaks and not figures.skipped
        return self._trip(step)

    def judge_logged_loss(self, step: int, loss: float) -> Optional[Trip]:
        """Judge a logged loss, for a training whose loss the guard cannot see."""
        self._mark_loss(loss, step)
        return self._trip(step)

    def hear_rewards(self, step: int, *, are_equal: bool) -> None:
        """Note that the script has logged rewards: equal rewards give no gradient, which is no fault."""
        if are_equal:
            self.reset("zero")
        else:
            self._rewards_differed_at = step

    def judge_end(self, step: int) -> Optional[Trip]:
        """Return a trip if the training ends in a bad state, even if no rule has reached its limit."""
        if self.skips and self.skips == self.steps:
            self._streaks.setdefault("gradients", Streak(self.skips, step - self.steps + 1))
        elif self._streaks.keys() == {"gradients"} and self.last.skipped:
            return None  # the scaler skipped the overflow, and the weights are sound
        return self._trip(step, is_end=True)

    def judge_no_steps(self, step: int) -> Trip:
        """Return the trip for a training with forward passes but without any optimizer step."""
        self._streaks = {"idle": Streak(max(step, 1), 1)}
        return self._describe("idle", RULES["idle"], step)

    def is_suspect(self, rule: str) -> bool:
        """Return whether a sample broke a rule twice in a row, so the guard should check all values."""
        streak = self._streaks.get(rule)
        return streak is not None and streak.steps >= 2

    def reset(self, rule: str) -> None:
        """Start a rule's count from zero."""
        self._streaks.pop(rule, None)

    @property
    def spoiled_by(self) -> Optional[str]:
        """The event that may have spoiled the weights in the last step, if any."""
        return next((RULES[rule].text for rule in SPOILING_RULES if rule in self._streaks), None)

    def _judge_movement(self, figures: Figures, step: int) -> None:
        """Judge a step that should have moved the weights: it had a learning rate, and a gradient.

        A gradient that is no more than rounding errors of earlier ones is none: the training has converged.
        """
        size = figures.size
        if size is not None and math.isfinite(size):
            self._largest_gradient = max(self._largest_gradient, size)
        is_small = size is not None and size <= ROUNDED * self._largest_gradient
        if not figures.is_rated or figures.skipped or is_small or figures.gradient == "zero":
            return
        if figures.moved is not None:
            self._mark("still", not figures.moved, step)
        if figures.at_start is not None:
            self.has_left_start = not figures.at_start
            self._mark("start", figures.at_start, step)

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
                "loss": scalar("loss", self.losses.last),
            }
        self._mark("loss", not is_finite, step)
        self.losses.add(loss)
        if is_finite:
            self._mark("explosion", self.losses.is_far_above, step)
            if self._is_settling_anew:  # a loss cannot fall in steps that are skipped
                self._streaks["explosion"] = self._streaks["explosion"]._replace(steps=0)
        if not self.last.gradient:
            self._mark("zero", loss == 0.0, step)
        if self.losses.is_learned:
            self.reset("zero")

    def _mark(self, rule: str, is_bad: bool, step: int) -> None:
        if is_bad:
            has_leapt = step - self._leapt_at <= RULES["leap"].steps
            streak = self._streaks.get(rule, Streak(0, step, has_leapt))
            self._streaks[rule] = streak._replace(steps=streak.steps + 1)
        else:
            self._streaks.pop(rule, None)

    def _trip(self, step: int, is_end: bool = False) -> Optional[Trip]:
        """Return the trip of the first rule whose limit is reached."""
        for name, rule in RULES.items():
            streak = self._streaks.get(name)
            if streak is None:
                continue
            if name == "zero" and streak.has_leapt:
                rule = DEAD_AFTER_A_LEAP  # noqa: PLW2901  # a training that looks dead has diverged
            if name == "loss" and self._is_unlabelled:
                rule = UNLABELLED  # noqa: PLW2901  # another precision would not help
            if streak.steps >= self._limit(name, rule) or (is_end and name in FINAL_STEP_RULES):
                return self._describe(name, rule, step)
            if streak.steps == rule.steps and name in WARNING_RULES:
                self.warning = self._describe(name, rule, step)
        return None

    def _limit(self, name: str, rule: Rule) -> float:
        """Return the number of bad steps in a row that ends the attempt now."""
        if rule is RULES["zero"]:
            is_unheard = self.expects_rewards and self._rewards_differed_at < self._streaks[name].since
            return math.inf if is_unheard else self._zero_limit
        if name == "rest":  # a schedule may end when half of a training is done
            return max(rule.steps, self._zero_limit, self._streaks[name].since)
        if name == "gradients" and self._is_settling_anew:
            return SETTLING_SKIPS
        if name == "explosion":
            return self._limit_of_high_losses()
        return rule.steps

    def _limit_of_high_losses(self) -> float:
        """Return the number of high losses that ends an attempt; infinite if they fall, or if the task is harder."""
        if self.losses.is_falling:
            return math.inf
        has_leapt = self._leapt_at >= self._streaks["explosion"].since - RULES["leap"].steps
        if has_leapt or not self.losses.is_sudden:
            return RULES["explosion"].steps
        return math.inf if self.losses.is_harder else STEPS_AFTER_A_JUMP

    @property
    def _is_unlabelled(self) -> bool:
        """Whether no step has had a gradient or a finite loss."""
        return self.steps > 0 and not self._has_had_gradient and not self.losses.has_been_finite

    @property
    def _is_settling_anew(self) -> bool:
        """Whether the scaler lowers its scale for a harder task: the loss became high when the skips began."""
        skips, high = self._streaks.get("gradients"), self._streaks.get("explosion")
        if skips is None or high is None or not self.last.skipped:
            return False
        return self.losses.is_sudden and skips.since == high.since > self._leapt_at

    def _describe(self, name: str, rule: Rule, step: int) -> Trip:
        """Return the trip of a rule, with the figures that explain it."""
        count = self._streaks[name].steps
        since = min(
            # A high loss shows the effect of the previous step on the weights.
            max(0, streak.since - 1) if other in ("explosion", "leap") else streak.since
            for other, streak in self._streaks.items()
            if other == name or RULES[other].kind == rule.kind
        )
        values = {
            "loss": self.losses.last,
            "loss_first": self.losses.first,
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
