"""Compare the precision that a training used with the ladder of its plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from pydantic import ValidationError

from launcher.values.precision import FP16_SQUARED_GRADIENT, SHORT, Precision
from launcher.values.public_result import public
from launcher.values.reported.used_precision import PrecisionSeen

VerdictKind = Literal["as-wanted", "lower-rung", "unsound", "different"]
_NOT_SEEN = "not seen"
_QUANTIZED = "nf4"
"""The name under which 4-bit parameters are counted."""


@public("PrecisionRow")
class PrecisionRow(NamedTuple):
    """A property of a precision: the observed and the wanted value."""

    name: str
    ran: str
    wanted: str
    differs: bool


class PrecisionVerdict(NamedTuple):
    """A training's precision compared with the ladder. `rung` is the rung that it equals, from 1, or None."""

    kind: VerdictKind
    sentence: str
    rung: int | None


def compare(
    ran: PrecisionSeen, wanted: Precision, *, is_rehearsed: bool, trains_all: bool = False
) -> tuple[PrecisionRow, ...]:
    """Compare the observed precision with a wanted one, row by row.

    A rehearsal runs on a CPU, so its device and tf32 are not compared. `trains_all`: the precision was
    planned for a full fine-tune. If the script freezes weights anyway, their dtype is not compared.
    """
    compares_tf32 = not is_rehearsed and wanted.device == "cuda" and _main(ran.computed) == "float32"
    device = (
        f"{ran.device}, for {wanted.device}" if is_rehearsed and ran.device != wanted.device else ran.device
    )
    rows = [
        PrecisionRow(
            "device",
            device or _NOT_SEEN,
            wanted.device,
            not is_rehearsed and ran.device not in (None, wanted.device),
        ),
        _set_row(
            "autocast",
            dict.fromkeys(ran.autocast, 1),
            {wanted.autocast_dtype} if wanted.autocast_dtype else set(),
            "none",
        ),
        PrecisionRow("scaler", _switch(ran.scaler), _switch(wanted.scaler), ran.scaler != wanted.scaler),
        _set_row("trained weights", _floats(ran.trainable), {wanted.trainable_dtype}, _NOT_SEEN),
    ]
    if _floats(ran.frozen):
        row = _frozen_row(ran.frozen, wanted)
        rows.append(row._replace(wanted="any", differs=False) if trains_all else row)
    rows += [
        _set_row("gradients", _floats(ran.gradients), {wanted.trainable_dtype}, _NOT_SEEN),
        _main_row("products", ran.computed, wanted.compute_dtype),
        *([_rounding_row(ran)] if wanted.rounds_stochastically else []),
        PrecisionRow(
            "tf32", _switch(ran.tf32), _switch(wanted.tf32), compares_tf32 and ran.tf32 != wanted.tf32
        ),
    ]
    return tuple(rows)


def judge(
    ran: PrecisionSeen, ladder: Sequence[Precision], *, is_rehearsed: bool, trains_all: bool = False
) -> PrecisionVerdict:
    """Return the verdict on the observed precision, from its comparison with a plan's ladder."""
    for number, rung in enumerate(ladder, start=1):
        if not any(
            row.differs for row in compare(ran, rung, is_rehearsed=is_rehearsed, trains_all=trains_all)
        ):
            return on_rung(ladder, number)
    fault = _fault(ran, ladder[0])
    if fault is not None:
        return PrecisionVerdict(
            "unsound", f"this run used a precision that does not train soundly on this card: {fault}", None
        )
    rows = compare(ran, ladder[0], is_rehearsed=is_rehearsed, trains_all=trains_all)
    differences = ", ".join(f"{row.name} {row.ran} instead of {row.wanted}" for row in rows if row.differs)
    return PrecisionVerdict(
        "different", f"this run used a precision that may train but is not on the ladder: {differences}", None
    )


def on_rung(ladder: Sequence[Precision], number: int, subject: str = "this run used") -> PrecisionVerdict:
    """Return the verdict on a training that ran a rung of the ladder, counted from 1."""
    if number == 1:
        return PrecisionVerdict("as-wanted", f"{subject} the card's best precision", 1)
    title = ladder[number - 1].title
    return PrecisionVerdict("lower-rung", f"{subject} rung {number} of the ladder, {title}", number)


def _fault(ran: PrecisionSeen, wanted: Precision) -> str | None:
    """Return why the observed precision is not valid for this card; `None` if no fault is known."""
    trained = _deciding_dtype(ran.trainable)
    base = _main(_floats(ran.frozen)) or trained
    autocast = ran.autocast[0] if ran.autocast else None
    halves = {dtype for dtype in (base, trained, autocast) if dtype not in ("float32", None)}
    if len(halves) > 1:
        return "it mixes fp16 and bf16"
    half = next(filter(None, halves), "float32")
    mode = SHORT.get(half, half)
    if (trained, autocast, ran.scaler) == ("float16", None, False):
        mode = "fp16-native"
    elif (trained, autocast, ran.stochastic_rounding) == ("bfloat16", None, True):
        mode = "bf16-weights"
    try:
        Precision.model_validate(
            {
                "mode": mode,
                "device": wanted.device,
                "capability": wanted.capability,
                "platform": wanted.platform,
                "base_dtype": base,
                "quantization": _QUANTIZED if _QUANTIZED in ran.frozen else None,
                "trainable_dtype": trained,
                "autocast_dtype": autocast,
                "scaler": ran.scaler,
                "adam_eps": 1e-4 if ran.eps is None else ran.eps,
                "why": "it ran",
            }
        )
    except ValidationError as error:
        return str(error.errors()[0]["msg"]).removeprefix("Value error, ")
    if mode == "fp16-native" and ran.eps is not None and ran.eps < FP16_SQUARED_GRADIENT:
        times = FP16_SQUARED_GRADIENT / ran.eps
        return f"over float16 weights, Adam with an eps of {ran.eps:g} takes steps up to {times:.0f} times too large"
    return None


def _set_row(name: str, ran: dict[str, int], wanted: set[str], none: str) -> PrecisionRow:
    """Return a row that compares all dtypes: one trained tensor of another dtype is enough to fail."""
    differs = {*ran} != wanted and (bool(ran) or none != _NOT_SEEN)
    return PrecisionRow(name, _dtypes(ran) or none, _dtypes(dict.fromkeys(wanted, 1)) or none, differs)


def _main_row(name: str, ran: dict[str, int], wanted: str) -> PrecisionRow:
    """Return a row that compares the dtype of most tensors: norms may stay in float32."""
    main = _main(_floats(ran))
    return PrecisionRow(name, _dtypes(ran) or _NOT_SEEN, SHORT[wanted], main not in (None, wanted))


def _frozen_row(ran: dict[str, int], wanted: Precision) -> PrecisionRow:
    """Return the row of a frozen base. Weights that were saved in 4 bits do not count as a difference."""
    row = _main_row("frozen weights", ran, wanted.base_dtype)
    is_wide = wanted.quantization is not None and wanted.quantization not in ran
    return row._replace(wanted=wanted.base_title, differs=row.differs or is_wide)


def _rounding_row(ran: PrecisionSeen) -> PrecisionRow:
    """Return a row for bf16 weights, whose small updates are lost by rounding to the nearest number."""
    rounding = "stochastic" if ran.stochastic_rounding else "to the nearest"
    return PrecisionRow("rounding", rounding, "stochastic", not ran.stochastic_rounding)


def _dtypes(counts: dict[str, int]) -> str:
    """Return dtypes, the most frequent first; if there are several, each with its number of tensors."""
    ordered = sorted(counts, key=lambda name: (-counts[name], name))
    shown = [(SHORT.get(name, name), counts[name]) for name in ordered]
    return ", ".join(name if len(shown) == 1 else f"{count} {name}" for name, count in shown)


def _floats(counts: dict[str, int]) -> dict[str, int]:
    """Return the floating dtypes, the only ones that a precision sets: a quantized base also has integers."""
    return {name: count for name, count in counts.items() if name in SHORT}


def _main(counts: dict[str, int]) -> str | None:
    return max(counts, key=lambda name: counts[name], default=None)


def _deciding_dtype(counts: dict[str, int]) -> str:
    """Return the deciding dtype of the trainables: the half-precision one, if any."""
    return next((name for name in ("float16", "bfloat16") if name in counts), "float32")


def _switch(is_on: bool | None) -> str:
    return _NOT_SEEN if is_on is None else "on" if is_on else "off"
