"""The history of precisions on a host: evidence that earlier runs left there, applied to a new plan.

A failed rung does not go first again with the same card, driver, torch, model and method. Example: fp16 gave
`fp16-unscale` for a model on a T4, so the next plan for that model there starts with fp32 and lists fp16 as
its second rung. A later success of the same precision clears the failure. Measurements of `launch verify`
decide, for later plans of the same workload, which precision is the fastest and which micro-batch fits.
"""

from __future__ import annotations

from collections.abc import Iterable

from launcher.values.facts import Measured, PrecisionEvidence
from launcher.values.job import Job
from launcher.values.plan import Source
from launcher.values.profile import Profile

PRECISION_FAILURES = {"nan-divergence", "fp16-unscale", "bf16-unsupported", "bf16-dtype-mismatch"}
"""The classes of failure whose remedy is the next rung."""
MIN_COSINE = 0.99
"""The minimum cosine between a precision's gradient and fp32's. A precision below it is not chosen automatically."""


def failed_before(
    evidence: Iterable[PrecisionEvidence],
    profile: Profile,
    job: Job,
    model: Source | None,
    torch: str | None,
) -> tuple[PrecisionEvidence, ...]:
    """Return the newest record of each precision that failed, or had a wrong gradient, in this situation.

    The situation is this card, method and torch. `evidence` is about `model` and the host's present driver. A
    model without its own name (a local path, or one that the script chooses) is identified by the job's name.
    `torch` is the version that the run gets, `None` if unknown; an unknown version matches every version.
    """
    newest = {record.precision: record for record in concerning(evidence, profile, job, model, torch)}
    return tuple(record for record in newest.values() if why_failed(record))


def why_failed(record: PrecisionEvidence) -> str | None:
    """Return why a precision must not be the first rung; None if it may be."""
    if record.failed in PRECISION_FAILURES:
        return record.failed
    cosine = record.measured.cosine if record.measured is not None else None
    if cosine is not None and cosine < MIN_COSINE:
        return f"the cosine of its gradient with fp32's was {cosine:.2f}"
    return None


def measured_in(evidence: Iterable[PrecisionEvidence], workload: str) -> dict[str, Measured]:
    """Return the last measurement of each precision by `launch verify` for a workload.

    The keys are precision digests. `workload` is a workload's digest, `evidence` the result of `concerning`.
    """
    return {
        record.precision: record.measured
        for record in evidence
        if record.measured is not None and record.measured.workload == workload
    }


def concerning(
    evidence: Iterable[PrecisionEvidence],
    profile: Profile,
    job: Job,
    model: Source | None,
    torch: str | None,
) -> list[PrecisionEvidence]:
    """Return the records about this card, job, model and torch, the oldest first; see `failed_before`."""

    def concerns(record: PrecisionEvidence) -> bool:
        is_same_model = (model is not None and model.kind != "local") or record.job == job.name
        is_same_card = (record.card, record.method) == (profile.name, job.method)
        return is_same_model and is_same_card and _is_same_torch(record.torch, torch)

    return sorted(filter(concerns, evidence), key=lambda record: record.time)


def _is_same_torch(first: str | None, second: str | None) -> bool:
    """Compare versions such as `2.13.0+cu126`; one without a build matches every build."""
    if first is None or second is None:
        return True
    (version, _, build), (other, _, other_build) = first.partition("+"), second.partition("+")
    return version == other and (not build or not other_build or build == other_build)
