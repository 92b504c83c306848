"""Read from torch the precision that a training uses. Nothing is changed, and no tensor's values are read."""

from __future__ import annotations

import gc
import re
import weakref
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Set, Tuple

from .quantization import dtype_name

MAX_NODES = (
    20_000  # the most nodes read of a loss's graph; a decoder of 7 billion parameters has about 10,000
)
COMPILED = "CompiledFunctionBackward"
_HEAVY = re.compile(r"(Mm|Addmm|Bmm|Baddbmm|Linear|Convolution|ScaledDotProduct\w*|\w*Rnn\w*)Backward\d*$")
"""Names of autograd's nodes for matrix products.

These products take most of the time, and autocast casts their inputs.
"""


class Backward(NamedTuple):
    """The contents of a loss's graph: the number of products per dtype, and the leaves.

    `is_compiled`: a part of the graph is one compiled function, whose inside is hidden.
    """

    computed: Dict[str, int]
    leaves: Tuple[Any, ...]
    is_compiled: bool


def read_graph(loss: Any) -> Backward:
    """Walk the graph of a loss. Saved tensors are not unpacked: a checkpoint would compute them again."""
    computed: Dict[str, int] = {}
    leaves: List[Any] = []
    is_compiled = False
    visited: Set[Any] = set()
    waiting: List[Any] = [loss.grad_fn]
    while waiting and len(visited) < MAX_NODES:
        node = waiting.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        name = node.name()
        if name.endswith("AccumulateGrad"):
            leaves.append(node.variable)
        elif _HEAVY.match(name):
            count(computed, node._input_metadata[0].dtype)  # noqa: SLF001  # the dtype of its result; no public name
        is_compiled = is_compiled or name.startswith(COMPILED)
        waiting.extend(following for following, _ in node.next_functions)
    return Backward(computed, tuple(leaves), is_compiled)


def models_with(parameters: Iterable[Any]) -> List[Any]:
    """Return weak references to the outermost modules that hold one of these parameters.

    An optimizer does not know the frozen parameters, and a plain loop does not name its model. So this
    function searches all objects of the process, which takes about 50 ms.
    """
    import torch

    kinds = _subclasses(torch.nn.Module)
    modules = [thing for thing in gc.get_objects() if type(thing) in kinds]
    inner = {id(child) for module in modules for child in vars(module).get("_modules", {}).values()}
    wanted = {id(part) for part in parameters}
    return [
        weakref.ref(module)
        for module in modules
        if id(module) not in inner and any(id(part) in wanted for part in _parameters(module))
    ]


def dtypes_of(parts: Iterable[Any]) -> Dict[str, int]:
    """Return the number of parameters per dtype; 4-bit parameters count as `nf4`."""
    counts: Dict[str, int] = {}
    for part in parts:
        name = dtype_name(part)
        counts[name] = counts.get(name, 0) + 1
    return counts


def frozen_of(models: Iterable[Any]) -> List[Any]:
    """Return the frozen parameters of models, given by weak references."""
    alive = [model for model in (reference() for reference in models) if model is not None]
    parts = {id(part): part for model in alive for part in _parameters(model)}
    return [part for part in parts.values() if not part.requires_grad]


def smallest_eps(groups: Iterable[Mapping[str, Any]]) -> Optional[float]:
    """Return the smallest eps of an optimizer's groups; None if no group has an eps.

    In float16, an eps below 6e-5 loses digits; below 6e-8 it is zero.
    """
    return min((group["eps"] for group in groups if isinstance(group.get("eps"), float)), default=None)


def uses_tf32() -> bool:
    """Return whether float32 products on a CUDA card are computed in tf32."""
    import torch

    settings = torch.backends.cuda.matmul
    if hasattr(settings, "fp32_precision"):  # torch 2.9 and later, where it is an error to read both settings
        return bool(settings.fp32_precision == "tf32")
    return bool(settings.allow_tf32)


def count(counts: Dict[str, int], dtype: Any) -> None:
    """Count one more tensor of a dtype, under torch's name such as `bfloat16`."""
    name = str(dtype).replace("torch.", "")
    counts[name] = counts.get(name, 0) + 1


def _parameters(module: Any) -> Iterable[Any]:
    try:
        return list(module.parameters())
    except (AttributeError, RuntimeError):  # a module whose __init__ has not ended
        return []


def _subclasses(kind: Any) -> Set[Any]:
    found: Set[Any] = set()
    waiting: List[Any] = [kind]
    while waiting:
        kind = waiting.pop()
        if kind not in found:
            found.add(kind)
            waiting.extend(kind.__subclasses__())
    return found
