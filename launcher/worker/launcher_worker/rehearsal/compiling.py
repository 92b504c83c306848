"""`torch.compile` in a rehearsal: the model runs uncompiled, because compiled kernels need the card.

A card that Triton does not support raises the same error as the real one.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from .limits import CardRefusesError, refuse
from .planned_card import Card

TRITON_FROM = (7, 0)
"""The lowest compute capability that Triton supports (`torch._inductor.exc.GPUTooOldForTriton`)."""


def install(torch: Any, card: Card) -> None:
    """Make `torch.compile` return the same object as on a card; the model in it runs uncompiled."""
    original = torch.compile

    @functools.wraps(original)
    def compiled(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("backend", "inductor") == "inductor" and not kwargs.get("disable"):
            _check(card)
        _leave_out(torch)
        return original(*args, **kwargs)

    torch.compile = compiled


def _check(card: Card) -> None:
    """Raise the error of torch's compiler for a card that is too old for it."""
    if card.capability >= TRITON_FROM:
        return
    major, minor = card.capability
    raise CardRefusesError(
        f"Found {card.name} which is too old to be supported by the triton GPU compiler, which is used as the backend. "
        f"Triton only supports devices of CUDA Capability >= 7.0, but your device is of CUDA capability {major}.{minor}"
    )


@functools.lru_cache(maxsize=None)
def _leave_out(torch: Any) -> None:
    """Run all models uncompiled from now on, and print that once; torch before 2.6 raises NotRehearsableError."""
    if not hasattr(torch.compiler, "set_stance"):
        refuse("torch.compile")
    torch.compiler.set_stance("force_eager")
    print(
        "rehearsal: torch.compile is left out, because its kernels need the card", file=sys.stderr, flush=True
    )
