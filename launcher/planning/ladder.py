"""The ordered list of precisions that a card and a method allow, fastest safe rung first.

A first version: it knows the card and whether adapters or all weights are trained, not yet the model.
"""

from __future__ import annotations

from typing import Literal

from launcher.errors import RefusedError
from launcher.spec.plan import Precision
from launcher.spec.profile import Profile

Method = Literal["lora", "full"]
Mode = Literal["auto", "bf16", "fp16", "fp32"]


def ladder(profile: Profile, method: Method, mode: Mode = "auto") -> tuple[Precision, ...]:
    """Return the rungs for a card, best first; with a mode other than auto, from that mode's first rung on.

    Raises RefusedError when the card excludes the mode, with the reason.
    """
    rungs = _RUNGS[profile.kind](profile, method)
    if mode == "auto":
        return rungs
    first = next((index for index, rung in enumerate(rungs) if rung.mode == mode), None)
    if first is None:
        raise RefusedError(f"{mode} is excluded on {profile.title}: {_why_not(profile, mode)}")
    return rungs[first:]


def _cuda(profile: Profile, method: Method) -> tuple[Precision, ...]:
    fp32 = Precision(mode="fp32", device="cuda", base_dtype="float32", why="always right")
    if profile.has_bf16:
        base = "bfloat16" if method == "lora" else "float32"
        return (
            Precision(
                mode="bf16",
                device="cuda",
                base_dtype=base,
                autocast_dtype="bfloat16",
                tf32=profile.has_tf32,
                why="the range of fp32 on tensor cores; no scaler to fail",
            ),
            fp32.model_copy(update={"tf32": True, "why": "fp32 storage, tf32 products on tensor cores"}),
            fp32,
        )
    if profile.has_fp16_tensor_cores:
        scaled = Precision(
            mode="fp16",
            device="cuda",
            base_dtype="float32",
            autocast_dtype="float16",
            scaler=True,
            why="tensor cores; trainables stay fp32, so the scaler can unscale",
        )
        if method == "full":
            return scaled, fp32
        half_base = scaled.model_copy(
            update={"base_dtype": "float16", "why": f"{scaled.why}; half the memory for the frozen base"}
        )
        wide = scaled.model_copy(update={"why": "for residuals beyond 65504, which overflow an fp16 base"})
        return half_base, wide, fp32
    fp32_first = fp32.model_copy(update={"why": "no tensor cores: fp16 saves memory here, not time"})
    if method == "full":
        return (fp32_first,)
    storage = Precision(
        mode="fp16",
        device="cuda",
        base_dtype="float16",
        why="half the memory for the frozen base, fp32 adapters",
    )
    return fp32_first, storage


def _mps(profile: Profile, method: Method) -> tuple[Precision, ...]:
    why = "right on every macOS and torch; bf16 depends on both"
    return (Precision(mode="fp32", device="mps", base_dtype="float32", why=why),)


def _cpu(profile: Profile, method: Method) -> tuple[Precision, ...]:
    return (Precision(mode="fp32", device="cpu", base_dtype="float32", why="a CPU's own precision"),)


_RUNGS = {"cuda": _cuda, "mps": _mps, "cpu": _cpu}


def _why_not(profile: Profile, mode: Mode) -> str:
    if profile.kind == "cpu" and mode == "fp16":
        return "accelerate silently switches fp16 off on a CPU"
    if profile.kind != "cuda":
        return f"this version offers only fp32 on {profile.kind}"
    if mode == "bf16":
        return f"capability {profile.capability} < 8.0 emulates it (torch says yes, the card says no)"
    if profile.has_bf16:
        return "bf16 is as fast there and needs no scaler"
    return "without tensor cores it is offered for LoRA only, as storage of the frozen base"
