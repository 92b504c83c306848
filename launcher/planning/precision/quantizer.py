"""bitsandbytes, which quantizes a base to 4 bits: whether a job needs it, and whether a host's version is new enough."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from launcher.values.facts import Facts
from launcher.values.job import Method, trains_adapter
from launcher.values.model import BITSANDBYTES, DEQUANTIZED, Model
from launcher.values.plan import Finding, Plan
from launcher.values.precision import numbers
from launcher.values.software.requirement import package_of

PACKAGE = "bitsandbytes"
_LEAST = "0.46.1"
"""The oldest version that transformers 5.23 accepts."""
_MIN_WITHOUT_CARD = "0.50"
"""The oldest version tested on a CPU, and the first with kernels for Apple's GPU (its pull request 1983)."""


def with_quantizer(requirements: tuple[str, ...], method: Method) -> tuple[str, ...]:
    """Return requirements, plus bitsandbytes if the method needs it and it is missing. Empty requirements stay empty."""
    if method != "qlora" or not requirements or PACKAGE in map(package_of, requirements):
        return requirements
    return (*requirements, f"{PACKAGE}>={_LEAST}")


def looked_for(names: Iterable[str], method: Method) -> list[str]:
    """Return the packages to look for on a host: those that a job names, and bitsandbytes if the method needs it."""
    return [*dict.fromkeys([*names, *([PACKAGE] if method == "qlora" else [])])]


def quantizer_findings(plan: Plan, facts: Facts) -> list[Finding]:
    """Refuse a host whose own Python lacks bitsandbytes, or has one that is too old for the plan's device."""
    interpreter = facts.interpreter
    if plan.method != "qlora" or plan.environment is not None or interpreter is None:
        return []
    if PACKAGE not in interpreter.packages:
        return []
    found = interpreter.packages[PACKAGE]
    is_on_card = plan.profile.kind == "cuda" and not plan.rehearsed
    least = _LEAST if is_on_card else _MIN_WITHOUT_CARD
    if found is not None and numbers(found) >= numbers(least):
        return []
    has = f"has {PACKAGE} {found}, not {least} or later" if found else f"lacks {PACKAGE}"
    message = f"{plan.host}: {interpreter.path} {has}: it quantizes the base of method = qlora"
    mend = f"{interpreter.path} -m pip install '{PACKAGE}>={least}'     there; or train without   --set method=lora"
    return [Finding(level="refuse", code="no-quantizer", message=message, mend=mend)]


def why_untrainable(model: Model | None, method: Method) -> str:
    """Return a saved base's quantization and why a method cannot train it; empty if the method can."""
    saved = model.quant_method if model is not None else None
    if saved is None:
        return ""
    if method == "qlora" and saved != BITSANDBYTES:
        return f"{saved}: transformers does not load it with the quantization of method = qlora"
    if not trains_adapter(method) and saved != DEQUANTIZED:
        return f"{saved}: quantized weights cannot be trained with method = full, only an adapter over them"
    return ""


def saved_quantized_findings(plan: Plan) -> list[Finding]:
    """Refuse a method that cannot train a base saved quantized; only note it if the script loads the base itself."""
    why = why_untrainable(plan.model_facts, plan.method)
    if not why:
        return []
    message = f"the model was saved quantized as {why}"
    mend = "--set method=lora     trains an adapter over it as it was saved"
    level: Literal["refuse", "note"] = "refuse" if plan.takes_base else "note"
    return [Finding(level=level, code="saved-quantized", message=message, mend=mend)]
