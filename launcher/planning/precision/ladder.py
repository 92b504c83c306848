"""The ladder: the precisions that a training may use on a card, fastest safe one first.

A run starts on the first rung; after a failure that a precision causes, its next attempt uses the next rung.
On a T4 the ladder of a LoRA training is `fp16 autocast + scaler, fp16 base`, `fp16 autocast + scaler, fp32
base`, `fp32`. The card decides which precisions are possible; the tables below decide which are chosen
automatically, and in which order. A precision that the user requests comes first, followed by the safer ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, NamedTuple

from pydantic import Field, ValidationError

from launcher.errors import RefusedError
from launcher.planning.precision.memory import (
    GB,
    Estimate,
    Training,
    estimate,
    gb_words,
    usable_gb,
    usable_words,
)
from launcher.planning.precision.precision_history import why_failed
from launcher.planning.precision.workload import Workload
from launcher.values.base import StrictModel
from launcher.values.facts import Measured, PrecisionEvidence
from launcher.values.job import Method, trains_adapter
from launcher.values.model import Model
from launcher.values.precision import (
    NO_NATIVE,
    Attention,
    Dtype,
    Mode,
    Platform,
    Precision,
    PrecisionRequest,
    Quantization,
    base_title,
)
from launcher.values.profile import Profile
from launcher.values.reported.trial_record import rate_of, rate_words

MODES: tuple[Mode, ...] = ("bf16-weights", "fp16", "bf16", "fp32")
"""The modes, the least safe first."""
FAILED_BEFORE = "failed here before: "
"""The start of `why` on a rung that evidence has moved behind a safer one."""


ASKED_FOR = "it was asked for, and does not fit; this is its leanest: "
"""The start of `why` on a rung of a requested precision that is too large for the card."""
MEASURED = "measured here: "
"""The start of `why` on a rung that `launch verify` has measured."""
NOTHING_FITS = "nothing fits; this is the leanest: "
FASTER = 1.1
"""A rung moves to the front if its measured speed is at least this multiple of the first rung's."""
_NOTHING_MEASURED: Mapping[str, Measured] = {}


class LadderInputs(NamedTuple):
    """The inputs of a ladder.

    `failures` are records of precisions that failed before on this host, with this card and model. `measured`
    maps a precision's digest to the measurement of `launch verify` there for the same workload.
    `takes_bf16_weights`: float32 weights do not fit in any way, so bf16 weights may be chosen automatically.
    """

    profile: Profile
    method: Method
    model: Model | None = None
    platform: Platform = Platform()
    attention: Attention = "sdpa"
    compile: bool = False
    workload: Workload = Workload()
    failures: tuple[PrecisionEvidence, ...] = ()
    measured: Mapping[str, Measured] = _NOTHING_MEASURED
    takes_bf16_weights: bool = False

    def estimate(self, precision: Precision) -> Estimate | None:
        """Return the memory of a step with a micro-batch of one; None if the model is unknown."""
        if self.model is None:
            return None
        return estimate(Training(self.model, self.method, self.workload), precision)


class Excluded(StrictModel):
    """A precision that is not a rung, and the reason.

    `base_dtype` is set if other dtypes of the base are possible in this mode. `on_request`: the precision is
    possible, but never chosen automatically.
    """

    mode: Mode
    base_dtype: Dtype | None = None
    quantization: Annotated[Quantization | None, Field(exclude_if=lambda value: value is None)] = None
    why: str
    on_request: bool = False

    @property
    def title(self) -> str:
        """The choice in a few words."""
        return f"{self.mode}, {self.base_title} base" if self.base_title else self.mode

    @property
    def base_title(self) -> str:
        """The base in a few words; empty if no base is possible."""
        return base_title(self.base_dtype, self.mode, self.quantization) if self.base_dtype else ""


class Ladder(NamedTuple):
    """The rungs, best first, and the precisions that are not rungs."""

    rungs: tuple[Precision, ...]
    excluded: tuple[Excluded, ...]


class _Candidate(NamedTuple):
    """A candidate precision. `only_on_request` holds the reason when it must not be chosen automatically."""

    values: dict[str, object]
    only_on_request: str = ""


class _Rung(NamedTuple):
    """A valid precision. `only_on_request` holds the reason when it must not be chosen automatically."""

    precision: Precision
    only_on_request: str


def ladder(inputs: LadderInputs, request: PrecisionRequest = "auto") -> Ladder:
    """Return the rungs: those that are chosen automatically, or the requested mode followed by the safer ones.

    If no precision fits the card's memory, or none of the requested mode does, the only rung is the one that
    needs the least memory, and its `why` gives the reason. An automatic ladder moves the first rung without
    a failure on this host to the front; a requested one keeps its order. Raises RefusedError if the card, the
    software, or the job's `attention` or `compile` excludes the requested mode.
    """
    if request == "fp16-native":
        raise RefusedError(NO_NATIVE)
    possible: list[_Rung] = []
    excluded: list[Excluded] = []
    for candidate in _CANDIDATES[inputs.profile.kind](inputs):
        rung = candidate if isinstance(candidate, Excluded) else _make(inputs, candidate)
        if isinstance(rung, Excluded):
            excluded.append(rung)
        else:
            possible.append(rung)
    if not possible:
        raise RefusedError(_why_nothing(inputs, excluded))
    fitting = [rung for rung in possible if not too_large(inputs, rung.precision)]
    rungs = [rung.precision for rung in fitting if not rung.only_on_request]
    excluded += [
        _as_excluded(rung, too_large(inputs, rung.precision)) for rung in possible if rung not in fitting
    ]
    if request == "auto":
        automatic = [rung.precision for rung in possible if not rung.only_on_request]
        rungs = _after_failures(rungs or [_leanest(inputs, automatic, NOTHING_FITS)], inputs.failures)
        rungs = _fastest_first(rungs, inputs)
    else:
        of_mode = [rung.precision for rung in possible if rung.precision.mode == request]
        if not of_mode:
            raise RefusedError(_why_not(inputs, request, excluded))
        requested = [rung for rung in of_mode if not too_large(inputs, rung)]
        # Only torchao's optimizer reads its checkpoints: a later rung with float32 weights could not use them.
        safer = () if request == "bf16-weights" else MODES[MODES.index(request) + 1 :]
        following = [rung for rung in rungs if rung.mode in safer]
        rungs = [*requested, *following] if requested else [_leanest(inputs, of_mode, ASKED_FOR)]
    rungs = [_with_measured(rung, inputs.measured.get(rung.digest)) for rung in rungs]
    on_request = [
        _as_excluded(rung, rung.only_on_request, on_request=True) for rung in fitting if rung.only_on_request
    ]
    listed = {(rung.mode, rung.base_dtype) for rung in rungs}
    others = [no for no in (*excluded, *on_request) if (no.mode, no.base_dtype) not in listed]
    return Ladder(tuple(rungs), tuple(dict.fromkeys(others)))


def is_too_large_as_asked(rungs: Sequence[Precision]) -> bool:
    """Whether the requested precision is too large for the card."""
    return rungs[0].why.startswith(ASKED_FOR)


def has_fitting(inputs: LadderInputs, request: PrecisionRequest = "auto") -> bool:
    """Whether the first rung of the ladder fits on the card."""
    try:
        first = ladder(inputs, request).rungs[0]
    except RefusedError:
        return False
    return not too_large(inputs, first)


def _fastest_first(rungs: list[Precision], inputs: LadderInputs) -> list[Precision]:
    """Move the fastest measured rung to the front, if it is clearly faster than the first one and did not fail."""
    failed = {failure.precision for failure in inputs.failures}
    known = {digest: measured for digest, measured in inputs.measured.items() if digest not in failed}
    place = clearly_fastest([rate_of(known.get(rung.digest)) for rung in rungs])
    return [*rungs[place : place + 1], *rungs[:place], *rungs[place + 1 :]]


def clearly_fastest(rates: Sequence[float]) -> int:
    """Return the index of the fastest rung, from the speeds of all; 0 if it is not clearly faster than the first.

    A rate of 0 means unknown.
    """
    best = max(range(len(rates)), key=lambda place: rates[place], default=0)
    is_clear = best > 0 and rates[0] > 0 and rates[best] >= FASTER * rates[0]
    return best if is_clear else 0


def _with_measured(rung: Precision, measured: Measured | None) -> Precision:
    """Return a rung whose `why` begins with its measurement."""
    if measured is None or rung.why.startswith(FAILED_BEFORE):
        return rung
    return rung.model_copy(update={"why": f"{MEASURED}{figures(measured)}; {rung.why}"})


def figures(measured: Measured) -> str:
    """Return the figures of a measurement in a few words, e.g. `812 tokens/s, 6.1 GB, gradient 0.9998`."""
    words = [
        rate_words(measured),
        f"{measured.peak_gb:.3g} GB" if measured.peak_gb else "",
        f"gradient {measured.cosine:.4f}" if measured.cosine is not None else "",
    ]
    return ", ".join(filter(None, words)) or "it trains"


def _after_failures(rungs: list[Precision], failures: tuple[PrecisionEvidence, ...]) -> list[Precision]:
    """Move the first rung without a failure on this host to the front. The failed ones stay on the ladder, behind it.

    `why` of a moved rung names the class of the failure, not the run: a plan contains no ids.
    """
    failure_of = {failure.precision: failure for failure in failures}
    first = next((rung for rung in rungs if rung.digest not in failure_of), None)
    if first is None:
        return rungs
    place = rungs.index(first)
    failed = [
        rung.model_copy(update={"why": f"{FAILED_BEFORE}{why_failed(failure_of[rung.digest])}; {rung.why}"})
        for rung in rungs[:place]
    ]
    return [first, *failed, *rungs[place + 1 :]]


def _as_excluded(rung: _Rung, why: str, *, on_request: bool = False) -> Excluded:
    precision = rung.precision
    return Excluded(
        mode=precision.mode,
        base_dtype=precision.base_dtype,
        quantization=precision.quantization,
        why=why,
        on_request=on_request,
    )


def _leanest(inputs: LadderInputs, rungs: list[Precision], why: str) -> Precision:
    rung = min(rungs, key=lambda precision: needed.total if (needed := inputs.estimate(precision)) else 0)
    return rung.model_copy(update={"why": f"{why}{too_large(inputs, rung)}"})


def _why_nothing(inputs: LadderInputs, excluded: list[Excluded]) -> str:
    """Return why even fp32 is excluded, which only the job's `attention`, `compile` or `method` can cause."""
    why = next(precision.why for precision in excluded if precision.mode == "fp32")
    mends = {
        "--set attention=sdpa": inputs.attention != "sdpa",
        "--set compile=false": inputs.compile,
        "--set method=lora": inputs.method == "qlora",
    }
    options = "     ".join(option for option, applies in mends.items() if applies)
    return f"{inputs.profile.title}: {why}\n  {options}"


def _why_not(inputs: LadderInputs, mode: Mode, excluded: list[Excluded]) -> str:
    whys = (precision.why for precision in excluded if precision.mode == mode)
    of_method = f", and the method is {inputs.method}: --set method=full"
    lacking = of_method if inputs.profile.has_bf16 else " on CUDA cards of capability 8.0 and up"
    why = next(whys, f"it is for full fine-tunes{lacking}")
    return f"{mode} is excluded on {inputs.profile.title}: {why}\n  let launch choose   --precision auto"


# the candidates of each kind of card, fastest first


def _cuda(inputs: LadderInputs) -> Iterator[_Candidate | Excluded]:
    profile = inputs.profile
    if profile.has_bf16:
        why = "the range of fp32 on tensor cores; needs no scaler"
        yield _Candidate({**_BF16, "base_dtype": _base(inputs, "bfloat16"), "tf32": True, "why": why})
    else:
        why = f"capability {profile.capability} < 8.0 emulates it in software (torch reports it as supported)"
        yield Excluded(mode="bf16", why=why)
    if profile.has_fp16_tensor_cores:
        needless = (
            "bf16 is as fast here, has the range of fp32 and needs no scaler" if profile.has_bf16 else ""
        )
        yield from _scaled(inputs, "tensor cores; ", needless)
        if profile.has_tf32:
            yield _Candidate({**_FP32, "tf32": True, "why": "fp32 storage, tf32 products on tensor cores"})
        yield _Candidate({**_FP32, "why": "always safe"})
    else:
        slow = "without tensor cores, fp16 saves memory but not time"
        plain = _Candidate({**_FP32, "why": f"always safe; {slow}"})
        yield plain
        yield from _scaled(inputs, "", slow if _fits(inputs, plain) else "")
    if profile.has_bf16 and inputs.method == "full":
        yield _bf16_weights(inputs)


def _bf16_weights(inputs: LadderInputs) -> _Candidate | Excluded:
    """Return bf16 weights for a full fine-tune; exclude them if the optimizer would round to the nearest."""
    if inputs.workload.is_sharded:
        return Excluded(
            mode="bf16-weights", why="its optimizer is not tested on a model that is divided among cards"
        )
    if inputs.workload.optimizer != "adamw-planned":
        why = "its optimizer must be the plan's, which rounds stochastically: --set settings.optim=auto, if the script takes that"
        return Excluded(mode="bf16-weights", why=why)
    needless = "" if inputs.takes_bf16_weights else "it is for models whose fp32 weights do not fit"
    return _Candidate(_BF16_WEIGHTS, needless)


def _scaled(inputs: LadderInputs, gain: str, needless: str) -> Iterator[_Candidate | Excluded]:
    """Yield fp16 autocast with a scaler: over an fp16 base, unless residuals may overflow it; then over an fp32 base.

    `gain` is the advantage of fp16 on the card besides memory, `needless` the reason not to choose it
    automatically.
    """
    why = f"{gain}trainables stay fp32, so the scaler can unscale"
    wide = _Candidate({**_SCALED, "base_dtype": "float32", "why": why}, needless)
    if trains_adapter(inputs.method):
        residuals = "residuals beyond 65504, which overflow an fp16 base"
        wide = _Candidate({**wide.values, "why": f"for {residuals}"}, needless)
        overflow = f"the model was saved in bf16: it may have {residuals}"
        is_at_risk = inputs.model is not None and inputs.model.dtype == "bfloat16"
        if is_at_risk and _fits(inputs, wide):
            quantization = _quantization(inputs)
            yield Excluded(mode="fp16", base_dtype="float16", quantization=quantization, why=overflow)
            wide = _Candidate({**wide.values, "why": overflow}, needless)
        else:
            halved = "the frozen base" if inputs.method == "lora" else "what is not quantized"
            smaller = f"{why}; half the memory for {halved}"
            warned = f"{smaller}; but {overflow}" if is_at_risk else smaller
            yield _Candidate({**_SCALED, "base_dtype": "float16", "why": warned}, needless)
    yield wide


def _fits(inputs: LadderInputs, candidate: _Candidate) -> bool:
    """Whether a candidate is valid and not too large."""
    rung = _make(inputs, candidate)
    return isinstance(rung, _Rung) and not too_large(inputs, rung.precision)


def _mps(inputs: LadderInputs) -> Iterator[_Candidate]:
    chip = inputs.platform.apple_chip
    emulated = "M1 and M2 emulate bf16, which is not faster than fp32"
    is_native = chip is not None and not re.match(r"Apple M[12]\b", chip)
    why = "the range of fp32 at half the memory; needs no scaler"
    yield _Candidate(
        {**_BF16, "base_dtype": _base(inputs, "bfloat16"), "why": why}, "" if is_native else emulated
    )
    yield _Candidate({**_FP32, "why": "works with every macOS and torch"})
    slow = "an Apple GPU computes fp16 no faster than fp32"
    yield _Candidate({**_SCALED, "base_dtype": "float32", "why": f"as requested; {slow}"}, slow)


def _cpu(inputs: LadderInputs) -> Iterator[_Candidate | Excluded]:
    yield _Candidate({**_FP32, "why": "the CPU's native precision"})
    elsewhere = "to try a card's plan on a CPU   --rehearse --profile CARD"
    if inputs.platform.has_cpu_bf16:
        yield _Candidate(
            {
                **_BF16,
                "base_dtype": _base(inputs, "bfloat16"),
                "why": "as requested; the processor computes bf16",
            },
            "the processor computes bf16, but whether faster than fp32 depends on the processor",
        )
    else:
        why = f"the processor is not known to compute bf16 in hardware; {elsewhere}"
        yield Excluded(mode="bf16", why=why)
    off = f"accelerate silently disables fp16 on a CPU; {elsewhere}"
    yield Excluded(mode="fp16", why=off)


_CANDIDATES = {"cuda": _cuda, "mps": _mps, "cpu": _cpu}
_FP32: dict[str, object] = {"mode": "fp32", "base_dtype": "float32"}
_BF16: dict[str, object] = {"mode": "bf16", "autocast_dtype": "bfloat16"}
_SCALED: dict[str, object] = {"mode": "fp16", "autocast_dtype": "float16", "scaler": True}
_BF16_WEIGHTS: dict[str, object] = {
    "mode": "bf16-weights",
    "base_dtype": "bfloat16",
    "trainable_dtype": "bfloat16",
    "why": "6 bytes a parameter, where fp32 weights do not fit; rounded stochastically, so that small updates count",
}


def _base(inputs: LadderInputs, half: Dtype) -> Dtype:
    """Return the dtype of the base: `half` if it is frozen, float32 if it is trained."""
    return half if trains_adapter(inputs.method) else "float32"


def _quantization(inputs: LadderInputs) -> Quantization | None:
    return "nf4" if inputs.method == "qlora" else None


# which candidates are valid, and which fit


def _make(inputs: LadderInputs, candidate: _Candidate) -> _Rung | Excluded:
    """Return the rung of a candidate, or the reason why its validator rejects it."""
    profile, values = inputs.profile, candidate.values
    common = {
        "quantization": _quantization(inputs),
        "device": profile.kind,
        "capability": profile.capability,
        "platform": inputs.platform if profile.kind == "mps" else None,
        "attention": inputs.attention,
        "compile": inputs.compile,
    }
    try:
        return _Rung(Precision.model_validate({**values, **common}), candidate.only_on_request)
    except ValidationError as error:
        why = error.errors()[0]["msg"].removeprefix("Value error, ")
        return Excluded.model_validate(
            {
                "mode": values["mode"],
                "base_dtype": values["base_dtype"],
                "quantization": common["quantization"],
                "why": why,
            }
        )


def too_large(inputs: LadderInputs, rung: Precision) -> str:
    """Return why a rung does not fit on the card; empty if it fits, or if the model's size is unknown."""
    available, needed = usable_gb(inputs.profile), inputs.estimate(rung)
    if inputs.model is None or available is None or needed is None or needed.total / GB <= available:
        return ""
    if rung.digest in inputs.measured:  # `launch verify` has trained it there
        return ""
    again = " with activation checkpointing" if inputs.workload.is_checkpointed else ""
    again += f" and a model divided among {inputs.workload.ranks} cards" if inputs.workload.is_sharded else ""
    return f"it needs about {gb_words(needed.total)} GB{again} for {inputs.model.billions:.1f} B parameters; {usable_words(inputs.profile)}"
