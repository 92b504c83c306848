"""The ordered list of precisions that a card, a model and a method allow, fastest safe rung first; and why not the others.

What a rung may be is the card's; which of them come by themselves, and in which order, is the tables' below. A rung
that is asked for is followed by the safer ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

from pydantic import ValidationError

from launcher.errors import RefusedError
from launcher.planning.memory import needed_gb, usable_gb
from launcher.values.base import Written
from launcher.values.model import Model
from launcher.values.precision import SHORT, Attention, Dtype, Mode, Platform, Precision
from launcher.values.profile import Profile

Method = Literal["lora", "full"]
PrecisionRequest = Literal["auto", "bf16", "fp16", "fp16-native", "fp32"]

MODES: tuple[Mode, ...] = ("fp16-native", "fp16", "bf16", "fp32")
"""From the one that most can go wrong in to the one in which nothing can."""
TOKENS = 1024
"""A sample's length where a job's settings have no `max_length`."""


class LadderInputs(NamedTuple):
    """What a ladder is made for. `tokens` is a sample's length."""

    profile: Profile
    method: Method
    model: Model | None = None
    platform: Platform = Platform()
    attention: Attention = "sdpa"
    compile: bool = False
    tokens: int = TOKENS


class Excluded(Written):
    """A precision that is no rung, or none by itself, and why; `base_dtype` where only that of a mode is meant."""

    mode: Mode
    base_dtype: Dtype | None = None
    why: str
    on_request: bool = False

    @property
    def title(self) -> str:
        """The choice in a few words."""
        return f"{self.mode}, {SHORT[self.base_dtype]} base" if self.base_dtype else self.mode


class Ladder(NamedTuple):
    """The rungs, best first, and what is none."""

    rungs: tuple[Precision, ...]
    excluded: tuple[Excluded, ...]


class _Candidate(NamedTuple):
    """A precision in the making, and why it is no rung by itself, if it is none."""

    values: dict[str, object]
    only_on_request: str = ""


class _Rung(NamedTuple):
    """A precision that can be, and why it is none by itself, if it is not."""

    precision: Precision
    only_on_request: str


def ladder(case: LadderInputs, asked: PrecisionRequest = "auto") -> Ladder:
    """Return the rungs for a case: by themselves, or from the mode that is asked for on.

    Of a model for which nothing fits the leanest rung is returned, which the gate refuses. Raises RefusedError when
    card, software or memory exclude the mode that is asked for, or what the job wants beside it.
    """
    possible: list[_Rung] = []
    excluded: list[Excluded] = []
    for candidate in _CANDIDATES[case.profile.kind](case):
        made = candidate if isinstance(candidate, Excluded) else _make(case, candidate)
        if isinstance(made, Excluded):
            excluded.append(made)
        else:
            possible.append(made)
    if not possible:
        raise RefusedError(_why_nothing(case, excluded))
    fitting = [one for one in possible if not too_large(case, one.precision)]
    rungs = [one.precision for one in fitting if not one.only_on_request]
    excluded += [_as_excluded(one, too_large(case, one.precision)) for one in possible if one not in fitting]
    if asked == "auto" and not rungs:
        rungs = [_leanest(case, possible)]
    elif asked != "auto":
        wanted = [one.precision for one in fitting if one.precision.mode == asked]
        if not wanted:
            raise RefusedError(_why_not(case, asked, excluded))
        rungs = [*wanted, *(one for one in rungs if one.mode in MODES[MODES.index(asked) + 1 :])]
    others = [one for one in fitting if one.only_on_request and one.precision not in rungs]
    on_request = [_as_excluded(one, one.only_on_request, on_request=True) for one in others]
    return Ladder(tuple(rungs), (*excluded, *on_request))


def _as_excluded(rung: _Rung, why: str, *, on_request: bool = False) -> Excluded:
    one = rung.precision
    return Excluded(mode=one.mode, base_dtype=one.base_dtype, why=why, on_request=on_request)


def _leanest(case: LadderInputs, possible: list[_Rung]) -> Precision:
    assert case.model is not None  # noqa: S101 - only a known model is too large
    model = case.model
    usual = [one.precision for one in possible if not one.only_on_request]
    return min(usual, key=lambda one: needed_gb(model, case.method, one, case.tokens))


def _why_nothing(case: LadderInputs, excluded: list[Excluded]) -> str:
    """Say what excludes even fp32, which can only be what the job wants beside its precision."""
    why = next(one.why for one in excluded if one.mode == "fp32")
    mends = {"attention": case.attention != "sdpa", "compile": case.compile}
    words = {"attention": "--set attention=sdpa", "compile": "--set compile=false"}
    return f"{case.profile.title}: {why}\n  " + "     ".join(
        words[key] for key, is_so in mends.items() if is_so
    )


def _why_not(case: LadderInputs, asked: Mode, excluded: list[Excluded]) -> str:
    why = next(one.why for one in excluded if one.mode == asked)
    return f"{asked} is excluded on {case.profile.title}: {why}\n  leave the choice to us   --precision auto"


# what each kind of card could do, fastest first


def _cuda(case: LadderInputs) -> Iterator[_Candidate | Excluded]:
    profile = case.profile
    if profile.has_bf16:
        why = "the range of fp32 on tensor cores; no scaler to fail"
        yield _Candidate({**_BF16, "base_dtype": _base(case, "bfloat16"), "tf32": True, "why": why})
    else:
        why = f"capability {profile.capability} < 8.0 emulates it (torch says yes, the card says no)"
        yield Excluded(mode="bf16", why=why)
    if profile.has_fp16_tensor_cores:
        yield from _scaled(case)
        if profile.has_tf32:
            yield _Candidate({**_FP32, "tf32": True, "why": "fp32 storage, tf32 products on tensor cores"})
        yield _Candidate({**_FP32, "why": "always right"})
    else:
        yield from _without_tensor_cores(case)
    yield _HALVES


def _scaled(case: LadderInputs) -> Iterator[_Candidate | Excluded]:
    """Yield fp16 on tensor cores: over a half base first, but for a model whose residuals may overflow it."""
    why = "tensor cores; trainables stay fp32, so the scaler can unscale"
    needless = (
        "bf16 is as fast here, has the range of fp32, and needs no scaler" if case.profile.has_bf16 else ""
    )
    wide = _Candidate({**_SCALED, "base_dtype": "float32", "why": why}, needless)
    if case.method == "lora":
        residuals = "residuals beyond 65504, which overflow an fp16 base"
        wide = _Candidate({**wide.values, "why": f"for {residuals}"}, needless)
        made = _make(case, wide)
        fits = isinstance(made, _Rung) and not too_large(case, made.precision)
        if fits and case.model is not None and case.model.dtype == "bfloat16":
            born = f"the model was born in bf16: it may have {residuals}"
            yield Excluded(mode="fp16", base_dtype="float16", why=born)
        else:
            lean = f"{why}; half the memory for the frozen base"
            yield _Candidate({**_SCALED, "base_dtype": "float16", "why": lean}, needless)
    yield wide


def _without_tensor_cores(case: LadderInputs) -> Iterator[_Candidate]:
    slow = "without tensor cores fp16 saves memory here, not time"
    plain = _Candidate({**_FP32, "why": f"always right; {slow}"})
    yield plain
    if case.method == "full":
        yield _Candidate({**_SCALED, "base_dtype": "float32", "why": f"as you asked; {slow}"}, slow)
        return
    made = _make(case, plain)
    may_fit = isinstance(made, _Rung) and not too_large(case, made.precision)
    why = "half the memory for the frozen base, fp32 adapters"
    yield _Candidate({"mode": "fp16", "base_dtype": "float16", "why": why}, slow if may_fit else "")


def _mps(case: LadderInputs) -> Iterator[_Candidate]:
    chip = case.platform.apple_chip
    emulated = "M1 and M2 emulate bf16, no faster than fp32"
    is_native = chip is not None and not re.match(r"Apple M[12]\b", chip)
    why = "the range of fp32 at half the memory; no scaler to fail"
    yield _Candidate(
        {**_BF16, "base_dtype": _base(case, "bfloat16"), "why": why}, "" if is_native else emulated
    )
    yield _Candidate({**_FP32, "why": "right on every macOS and torch"})
    slow = "an Apple GPU computes fp16 no faster than fp32"
    yield _Candidate({**_SCALED, "base_dtype": "float32", "why": f"as you asked; {slow}"}, slow)
    yield _HALVES


def _cpu(case: LadderInputs) -> Iterator[_Candidate | Excluded]:
    yield _Candidate({**_FP32, "why": "a CPU's own precision"})
    elsewhere = "to try a card's plan on a CPU   --rehearse --profile CARD"
    if case.platform.has_cpu_bf16:
        yield _Candidate(
            {
                **_BF16,
                "base_dtype": _base(case, "bfloat16"),
                "why": "as you asked: the processor computes bf16",
            },
            "the processor computes bf16; whether that is faster than fp32 differs from one to the next",
        )
    else:
        why = f"the processor is not known to compute bf16 itself; {elsewhere}"
        yield Excluded(mode="bf16", why=why)
    off = f"on a CPU accelerate silently switches fp16 off; {elsewhere}"
    yield Excluded(mode="fp16", why=off)
    yield Excluded(mode="fp16-native", why=off)


_CANDIDATES = {"cuda": _cuda, "mps": _mps, "cpu": _cpu}
_FP32: dict[str, object] = {"mode": "fp32", "base_dtype": "float32"}
_BF16: dict[str, object] = {"mode": "bf16", "autocast_dtype": "bfloat16"}
_SCALED: dict[str, object] = {"mode": "fp16", "autocast_dtype": "float16", "scaler": True}
_HALVES = _Candidate(
    {
        "mode": "fp16-native",
        "base_dtype": "float16",
        "trainable_dtype": "float16",
        "adam_eps": 1e-4,
        "why": "as you asked: half weights, no scaler, and an eps that Adam's division survives",
    },
    "half weights lose small updates, and nothing scales small gradients: the others are safer",
)


def _base(case: LadderInputs, half: Dtype) -> Dtype:
    """Return the dtype of the base: a frozen one may be half, one that is trained stays float32."""
    return half if case.method == "lora" else "float32"


# what can be made, and what fits


def _make(case: LadderInputs, candidate: _Candidate) -> _Rung | Excluded:
    """Return the precision of a candidate; why it cannot be, where its validator says so."""
    profile, values = case.profile, candidate.values
    beside = {
        "device": profile.kind,
        "capability": profile.capability,
        "platform": case.platform if profile.kind == "mps" else None,
        "attention": case.attention,
        "compile": case.compile,
    }
    try:
        return _Rung(Precision.model_validate({**values, **beside}), candidate.only_on_request)
    except ValidationError as error:
        why = error.errors()[0]["msg"].removeprefix("Value error, ")
        return Excluded.model_validate(
            {"mode": values["mode"], "base_dtype": values["base_dtype"], "why": why}
        )


def too_large(case: LadderInputs, rung: Precision) -> str:
    """Return why a rung does not fit on the card, as far as the model is known; empty where it does."""
    room = usable_gb(case.profile)
    if case.model is None or room is None:
        return ""
    needed = needed_gb(case.model, case.method, rung, case.tokens)
    if needed <= room:
        return ""
    return f"it takes some {needed:,.0f} GB for {case.model.billions:.1f} B parameters; the card has {case.profile.memory_gb:g} GB"
