"""Tensors of an imitated card: when a script passes the device `cuda`, torch gets the CPU.

Such a tensor reports the CPU as its device. A move back from the card makes a copy, as with a real card.
"""

from __future__ import annotations

import copyreg
import functools
from typing import Any, Callable, Dict

_LIKE = ["zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like", "randint_like"]
_NEW = ["new_empty", "new_empty_strided", "new_full", "new_ones", "new_tensor", "new_zeros"]


class Moves:
    """Counts the tensors that were made on the card, or moved to it."""

    def __init__(self) -> None:
        self.count = 0

    def is_card(self, device: Any) -> bool:
        """Return whether a device means the card; if so, count it. An integer is the number of a card."""
        kind = getattr(device, "type", device)
        is_card = isinstance(kind, str) and kind.partition(":")[0] == "cuda"
        is_card = is_card or (isinstance(device, int) and not isinstance(device, bool))
        self.count += is_card
        return is_card

    def on_cpu(self, device: Any) -> Any:
        """Return the CPU for a card, and every other device unchanged."""
        return "cpu" if self.is_card(device) else device


moves = Moves()


def install(torch: Any) -> None:
    """Make torch's own functions treat `cuda` as the CPU."""
    from torch.utils._device import DeviceContext, _device_constructors

    for function in _device_constructors():
        _wrap(torch, function.__name__)
    for name in _LIKE:
        _wrap(torch, name)
    for name in _NEW:
        _wrap(torch.Tensor, name)
    _wrap_moves(torch.Tensor)
    _wrap_loading(torch)
    torch.Generator = _generator(torch)
    torch.device = _device(torch)
    original = DeviceContext.__init__

    @functools.wraps(original)
    def begin(self: Any, device: Any) -> None:
        original(self, torch.device(moves.on_cpu(device)))

    DeviceContext.__init__ = begin


def _wrap(owner: Any, name: str) -> None:
    """Wrap a function: if its keyword `device` is a card, replace the card by the CPU."""
    function = getattr(owner, name, None)
    if function is None:
        return

    @functools.wraps(function)
    def made(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("device") is not None:
            kwargs["device"] = moves.on_cpu(kwargs["device"])
        return function(*args, **kwargs)

    setattr(owner, name, made)
    _keep_scriptable(function, made)


def _keep_scriptable(function: Any, wrapper: Callable[..., Any]) -> None:
    """Make torch.jit.script treat the wrapper as the built-in function that it wraps."""
    from torch.jit import _builtins

    known = _builtins._find_builtin(function)  # noqa: SLF001  # torch has no public function for it
    if known is not None:
        _builtins._register_builtin(wrapper, known)  # noqa: SLF001


def _wrap_moves(tensor: Any) -> None:
    to, cpu = tensor.to, tensor.cpu

    @functools.wraps(to)
    def moved(self: Any, *args: Any, **kwargs: Any) -> Any:
        device = args[0] if args else kwargs.get("device")
        if moves.is_card(device):
            if args:
                args = ("cpu", *args[1:])
            else:
                kwargs["device"] = "cpu"
            return to(self, *args, **kwargs)
        back = to(self, *args, **kwargs)
        is_move = getattr(device, "type", device) == "cpu"
        return back.clone() if is_move and back is self else back

    @functools.wraps(tensor.cuda)
    def to_card(self: Any, device: Any = None, *_args: Any, **_kwargs: Any) -> Any:
        moves.is_card("cuda" if device is None else device)
        return self

    @functools.wraps(cpu)
    def to_cpu(self: Any, *args: Any, **kwargs: Any) -> Any:
        back = cpu(self, *args, **kwargs)
        return back.clone() if back is self else back

    tensor.to, tensor.cuda, tensor.cpu = moved, to_card, to_cpu
    tensor.pin_memory = lambda self, *_args, **_kwargs: self
    tensor.record_stream = lambda _self, _stream: None


def _wrap_loading(torch: Any) -> None:
    load = torch.load

    @functools.wraps(load)
    def loaded(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(map_location, dict):
            map_location = {source: moves.on_cpu(target) for source, target in map_location.items()}
        elif map_location is None or not callable(map_location):
            map_location = "cpu" if map_location is None else moves.on_cpu(map_location)
        return load(f, map_location, *args, **kwargs)

    torch.load = loaded


def _generator(torch: Any) -> Any:
    """Return a torch.Generator that accepts a card as device; every Generator is an instance of it."""
    original = torch.Generator

    class GeneratorType(type(original)):  # type: ignore[misc]
        def __call__(cls, device: Any = "cpu") -> Any:
            return original(device=moves.on_cpu(device))

        def __instancecheck__(cls, one: Any) -> bool:
            return isinstance(one, original)

    members: Dict[str, object] = {"__doc__": original.__doc__, "__module__": original.__module__}
    return GeneratorType("Generator", (original,), members)


def _device(torch: Any) -> Any:
    """Return a torch.device that takes a bare number as the number of a card; every device is an instance of it."""
    original = torch.device

    class DeviceType(type):
        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            if len(args) == 1 and not kwargs and isinstance(args[0], int):
                args = ("cuda", args[0])
            return original(*args, **kwargs)

        def __instancecheck__(cls, one: Any) -> bool:
            return isinstance(one, original)

    stand_in = DeviceType("device", (), {"__doc__": original.__doc__, "__module__": "torch"})
    # pickle finds the stand-in by the name torch.device, which exists in every process.
    copyreg.pickle(original, lambda device: (stand_in, (str(device),)))
    return stand_in
