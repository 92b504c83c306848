"""The title of a run's curves: job, card and precision."""

from __future__ import annotations

from launcher.errors import BadFileError
from launcher.runs.mirror import Mirror
from launcher.runs.precision_report import AttemptPrecision, precision_report
from launcher.values.text import printable


def title_of(mirror: Mirror) -> str:
    """Return what ran where, and at which precision as far as that was seen: sft · TITAN RTX 24 GB · fp16 autocast + scaler."""
    plan = mirror.plan()
    card = f"{plan.card}, rehearsed on a CPU" if plan.card and plan.rehearsed else plan.card
    return printable(" · ".join(filter(None, (plan.job, card, _precision(mirror)))))


def _precision(mirror: Mirror) -> str:
    try:
        ran = precision_report(mirror).ran
    except BadFileError:  # a plan of another version
        return ""
    return "" if ran is None else _words(ran)


def _words(attempt: AttemptPrecision) -> str:
    if attempt.planned is not None:
        return attempt.planned.title
    if attempt.ran is None:
        return ""
    weights = "/".join(sorted(attempt.ran.trainable))
    return f"{'/'.join(attempt.ran.autocast)} autocast" if attempt.ran.autocast else f"{weights} weights"
