"""Measure a card's matrix products, forward and backward in each dtype: results and speed.

Run as `python -m launcher_worker.trials.card`. No job runs. On a CPU it measures the CPU. If torch cannot use
the card, it fails with torch's own error.
"""

from __future__ import annotations

import time
from typing import Any, Dict, List, Mapping, Optional, Tuple, TypedDict

from ..channel import send
from ..values import knobs
from .meters import wait_for

SIZES = {"cuda": 4096, "mps": 2048, "cpu": 512}
"""The width of the square matrices: large enough to keep the card busy, small enough to take a fraction of a second."""
MEASURED_S = 0.3
MAX_ROUNDS = 50
WARM_ROUNDS = 2
TERA = 1e12


def main() -> None:
    """Measure the products, print a line and send the evidence."""
    import torch

    values = knobs()
    device = values.peek.precision.device
    torch.zeros(8, device=device).add(1).sum().item()  # raises torch's own error if it cannot use the device
    products = {name: _product(torch, device, *form) for name, form in _forms(torch, device)}
    found: Dict[str, object] = {
        "kind": "card",
        "device": device,
        "torch": torch.__version__,
        "products": products,
        **(_of_cuda(torch) if device == "cuda" else {}),
    }
    print(_words(str(found.get("name") or device), products), flush=True)
    send("evidence", values={"trial": found})


def _forms(torch: Any, device: str) -> List[Tuple[str, Tuple[Any, bool]]]:
    """Return the name of each kind of product, its dtype, and whether tf32 is on."""
    forms = [
        ("fp32", (torch.float32, False)),
        ("fp16", (torch.float16, False)),
        ("bf16", (torch.bfloat16, False)),
    ]
    has_tf32 = device == "cuda" and torch.cuda.get_device_capability() >= (8, 0)
    return [*forms[:1], *([("tf32", (torch.float32, True))] if has_tf32 else []), *forms[1:]]


class MeasuredProduct(TypedDict, total=False):
    """The speed of a matrix product in TFLOP/s, and whether its result is finite; or its `error`."""

    forward_tflops: float
    backward_tflops: float
    finite: bool
    error: str


def _product(torch: Any, device: str, dtype: Any, is_tf32: bool) -> MeasuredProduct:
    """Return the TFLOP/s of a product, forward and backward, or its error."""
    size = SIZES.get(device, SIZES["cpu"])
    if device == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = is_tf32
    try:
        first = torch.randn(size, size, device=device).to(dtype).requires_grad_()
        second = torch.randn(size, size, device=device).to(dtype).requires_grad_()
        grown = torch.ones(size, size, device=device, dtype=dtype)
        product = first @ second
        forward_s = _seconds(torch, device, lambda: first @ second)
        backward_s = _seconds(  # timed alone: the difference of two times would be noise on a busy machine
            torch,
            device,
            lambda: torch.autograd.grad(product, (first, second), grown, retain_graph=True),
        )
        is_finite = bool(product.isfinite().all())
    except (RuntimeError, NotImplementedError) as error:
        return {"error": str(error).splitlines()[0][:200]}
    work = 2 * size**3 / TERA
    return {
        "forward_tflops": work / forward_s,
        "backward_tflops": 2 * work / backward_s,
        "finite": is_finite,
    }


def _seconds(torch: Any, device: str, compute: Any) -> float:
    """Return the mean duration of a computation, in seconds."""
    for _ in range(WARM_ROUNDS):
        compute()
    wait_for(device)
    rounds, began_s = 0, time.monotonic()
    while rounds < MAX_ROUNDS:
        compute()
        wait_for(device)
        rounds += 1
        if time.monotonic() - began_s >= MEASURED_S:
            break
    return (time.monotonic() - began_s) / rounds


def _of_cuda(torch: Any) -> Dict[str, object]:
    """Return torch's properties of the card, and the architectures that this torch was built for."""
    properties = torch.cuda.get_device_properties(0)
    capability = (properties.major, properties.minor)
    architectures = [str(one) for one in torch.cuda.get_arch_list()]
    return {
        "name": properties.name,
        "capability": "%d.%d" % capability,
        "memory_gb": properties.total_memory / 1e9,
        "cuda": torch.version.cuda,
        "architectures": architectures,
        "kernels": kernels_for(capability, architectures),
    }


def kernels_for(capability: Tuple[int, int], architectures: List[str]) -> Optional[str]:
    """Return the architecture whose code this card runs: e.g. `sm_75`, or `compute_70`, which is compiled at first use.

    None if none of torch's code runs on the card. Binary code runs on cards of the same major version and the
    same or a later minor one, PTX on all later cards. Source: CUDA C++ Programming Guide, "Binary
    Compatibility" and "PTX Compatibility".
    """
    built: Dict[str, List[Tuple[int, int]]] = {"sm": [], "compute": []}
    for name in architectures:
        kind, _, number = name.partition("_")
        digits = "".join(filter(str.isdigit, number))
        if kind in built and len(digits) >= 2:
            built[kind].append((int(digits[:-1]), int(digits[-1])))
    binary = [one for one in built["sm"] if one[0] == capability[0] and one <= capability]
    if binary:
        return "sm_%d%d" % max(binary)
    portable = [one for one in built["compute"] if one <= capability]
    return "compute_%d%d" % max(portable) if portable else None


def _words(name: str, products: Mapping[str, MeasuredProduct]) -> str:
    """Return the summary line for the log."""
    parts = [
        "%s %s" % (name, one.get("error") or "%.3g TFLOP/s" % one["forward_tflops"])
        for name, one in products.items()
    ]
    return "%s: %s" % (name, ", ".join(parts))


if __name__ == "__main__":
    main()
