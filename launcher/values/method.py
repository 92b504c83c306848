"""The training method: all weights, or an adapter over a frozen base that is loaded as it is (`lora`) or in 4 bits (`qlora`)."""

from __future__ import annotations

from typing import Literal

Method = Literal["lora", "qlora", "full"]


def trains_adapter(method: Method) -> bool:
    """Return whether the base is frozen and an adapter is trained."""
    return method != "full"
