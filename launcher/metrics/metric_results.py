"""The result of each metric of a run: its final value, and its best value if the name shows which way is better."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from launcher.metrics.curves import Measured, Point
from launcher.values.public_result import Number, public

Goal = Literal["min", "max"]

NO_GOALS: Mapping[str, Goal] = {}
_PARTS = re.compile(r"[^a-z0-9]+")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_LESS = _words(
    """
    loss losses ppl perplexity error err wer cer eer mse mae rmse nll xent crossentropy logloss mlogloss bpb bpc fid
    """
)
_MORE = _words(
    """
    acc accuracy acc1 acc5 top1 top5 f1 bleu sacrebleu chrf rouge rouge1 rouge2 rougel auc auroc mcc miou iou dice map map50
    psnr ssim precision recall score ndcg mrr r2 reward rewards pesq stoi snr
    """
)
_RATES_OF_SUCCESS = ("answer_rate", "win_rate", "success_rate")
_NO_QUALITY = _words(
    "scale scaler weight weights coef std var count norm lr rate time margin margins step epoch"
)
"""Words that change the meaning of a name: the scale of a loss, the deviation of a reward."""


@public("MetricResultShown")
class MetricResult(NamedTuple):
    """The result of a metric: its last and its best value; `goal` is the better direction, null if unknown."""

    name: str
    final: Number
    final_step: int | None
    best: Number | None
    best_step: int | None
    goal: Goal | None


def goal_of(name: str) -> Goal | None:
    """Return the better direction of a metric, judged by its name; None if the name does not show it.

    Example: `eval_loss` is "min", `val/accuracy` is "max", `grad_norm` and `tokens_per_s` are None.
    """
    plain = name.lower()
    if plain.endswith(_RATES_OF_SUCCESS):
        return "max"
    parts = {*_PARTS.split(plain)}
    if "error" in parts and "rate" in parts:
        return "min"
    if parts & _NO_QUALITY:
        return None
    return "min" if parts & _LESS else "max" if parts & _MORE else None


def results(
    run: str, found: Iterable[Measured], goals: Mapping[str, Goal] = NO_GOALS
) -> dict[str, MetricResult]:
    """Return the result of each metric, by name, from the points of a run, and of those that it continues, in their order.

    `goals` set the better direction of some metrics, whatever their names show. If several ranks report a
    metric, only the lowest rank counts. If an attempt reports a metric with steps, its values without a step
    do not count. The final value is of the run's attempt that reported last, which may have no steps.
    """
    series: dict[str, list[Measured]] = {}
    for one in found:
        series.setdefault(one[1].name, []).append(one)
    return {
        name: _result(run, name, every, goals.get(name) or goal_of(name)) for name, every in series.items()
    }


def _result(last: str, name: str, every: list[Measured], goal: Goal | None) -> MetricResult:
    rank = min(point.rank for _, point in every)
    attempts: dict[tuple[str, int], list[Point]] = {}
    for run, point in every:
        if point.rank == rank:
            attempts.setdefault((run, point.attempt), []).append(point)
    counted = {
        by: [one for one in points if one.step is not None] or points for by, points in attempts.items()
    }
    own = [point for points in counted.values() for point in points]
    final = counted[max(counted, key=lambda by: (by[0] == last, counted[by][-1].time))][-1]
    finite = [point for point in own if math.isfinite(point.value)]
    if goal is None or not finite:
        return MetricResult(name, final.value, final.step, None, None, goal)
    best = (min if goal == "min" else max)(finite, key=lambda point: point.value)
    return MetricResult(name, final.value, final.step, best.value, best.step, goal)
