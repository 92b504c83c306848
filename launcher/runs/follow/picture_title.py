"""The title of a run's curves: job, card and precision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.base.text import printable
from launcher.copy.local_copy import LocalCopy

if TYPE_CHECKING:
    from launcher.runs.follow.precision_report import PrecisionReport


def title_of(local_copy: LocalCopy, report: PrecisionReport | None) -> str:
    """Return the job, the card and the precision, if it was seen: sft · TITAN RTX 24 GB · fp16 autocast + scaler."""
    plan = local_copy.record.plan()
    card = f"{plan.card}, rehearsed on a CPU" if plan.card and plan.rehearsed else plan.card
    precision = report.words if report is not None else None
    return printable(" · ".join(filter(None, (plan.job, card, precision))))
