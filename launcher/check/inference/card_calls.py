"""What a script's questions about the card return on the card that a check is made for."""

from __future__ import annotations

import ast
from typing import NamedTuple

from launcher.check.inference.value import UNKNOWN, Const, Items, Value
from launcher.values.precision import AMPERE, VOLTA
from launcher.values.profile import Profile


class Card(NamedTuple):
    """The card that a check is made for. `compute` is None if it has no CUDA, or if no profile was named."""

    kind: str = "cuda"
    compute: tuple[int, int] | None = None
    title: str = ""
    cards: int | None = None

    @classmethod
    def of(cls, profile: Profile | None) -> Card:
        """Return the card of a profile; without one, a CUDA card of which nothing else is known."""
        if profile is None:
            return cls()
        return cls(profile.kind, profile.compute, profile.title, profile.count)

    @property
    def lacks_bf16(self) -> bool:
        """Whether it is known to compute no bf16 in hardware."""
        return self.compute is not None and self.compute < AMPERE

    @property
    def is_before_ampere(self) -> bool:
        """Whether it is known to have no features of Ampere: an older NVIDIA card, or no NVIDIA card at all."""
        return self.lacks_bf16 or self.kind != "cuda"

    @property
    def lacks_triton(self) -> bool:
        """Whether it is known that Triton, and so torch.compile, does not support it."""
        return self.compute is not None and self.compute < VOLTA


def value_of_card(name: str, call: ast.Call, card: Card) -> Value | None:
    """Return the result of a call such as `torch.cuda.is_available()`; None if it does not ask about the card."""
    is_cuda = card.kind == "cuda"
    match name:
        case (
            "torch.cuda.is_available"
            | "torch.accelerator.is_available"
            | "accelerate.utils.is_cuda_available"
        ):
            return Const(is_cuda or (name.startswith("torch.accelerator") and card.kind == "mps"))
        case "torch.backends.mps.is_available" | "torch.backends.mps.is_built" | "torch.mps.is_available":
            return Const(card.kind == "mps")
        case "torch.cuda.is_bf16_supported":
            emulates = next((one.value for one in call.keywords if one.arg == "including_emulation"), None)
            if not is_cuda or not isinstance(emulates, ast.Constant) or emulates.value:
                return Const(is_cuda)  # on a CUDA card it counts emulation
            return UNKNOWN if card.compute is None else Const(card.compute >= AMPERE)
        case "torch.cuda.get_device_capability":
            return UNKNOWN if card.compute is None else Items(tuple((Const(one),) for one in card.compute))
        case "torch.cuda.device_count":
            known = card.cards if is_cuda else 0
            return UNKNOWN if known is None else Const(known)
        case (
            "transformers.utils.is_torch_bf16_gpu_available"
            | "transformers.utils.import_utils.is_torch_bf16_gpu_available"
        ):
            return Const(is_cuda)
        case "torch.xpu.is_available" | "torch.npu.is_available":
            return Const(False)
    return None
