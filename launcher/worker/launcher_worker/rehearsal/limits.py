"""The features that cannot be imitated without a card, and the error for them.

The agent's table of failures looks for the line `not rehearsable: ...`.
"""

from __future__ import annotations

import re
import sys
from typing import Any, NoReturn

PREFIX = "not rehearsable: "
_NEEDS_A_CARD = re.compile(
    r"not compiled with CUDA|CUDA driver|NVIDIA driver|libcuda|libcudart|libnvrtc|torch\.cuda\.\w+Tensor|"
    r"0 active drivers|Triton|flash[-_ ]?attn|FlashAttention|(?:must be|expected|should be) (?:on )?(?:a )?CUDA|"
    r"No available kernel|CUDA extension|CUDA_HOME|NCCL",
    re.IGNORECASE,
)
"""Errors of libraries that need a card: torch, Triton, flash-attn, bitsandbytes, extensions."""


class NotRehearsableError(RuntimeError):
    """Raised for a feature that needs a real card; its text begins with `not rehearsable:` and names the feature."""


class CardRefusesError(RuntimeError):
    """Raised for a call that the real card would refuse too."""


def refuse(what: str) -> NoReturn:
    """Raise NotRehearsableError; `what` names the feature."""
    raise NotRehearsableError(f"{PREFIX}{what} needs a real card")


def install(torch: Any) -> None:
    """Refuse features that have no meaning on a CPU, and report libraries that fail without a card."""
    cuda = torch.cuda
    for name in (
        "CUDAGraph",
        "graph",
        "make_graphed_callables",
        "MemPool",
        "CUDAPluggableAllocator",
        "cudart",
    ):
        if hasattr(cuda, name):
            setattr(cuda, name, _refused(getattr(cuda, name), f"torch.cuda.{name}"))
    original = sys.excepthook

    def report(kind: Any, error: BaseException, traceback: Any) -> None:
        original(kind, error, traceback)
        text = f"{kind.__name__}: {error}"
        if not isinstance(error, (NotRehearsableError, CardRefusesError)) and _NEEDS_A_CARD.search(text):
            print(f"{PREFIX}{text.splitlines()[0][:300]}", file=sys.stderr, flush=True)

    sys.excepthook = report


def _refused(original: Any, what: str) -> Any:
    """Return a stand-in for a class or a function.

    That of a class is a class, because annotations may name it.
    """

    def refused(*_args: Any, **_kwargs: Any) -> NoReturn:
        refuse(what)

    return type(original.__name__, (), {"__new__": refused}) if isinstance(original, type) else refused
