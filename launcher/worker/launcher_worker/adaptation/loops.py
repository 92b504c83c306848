"""A loop in plain torch: autocast and GradScaler follow the plan; the first forward pass reveals the model.

The optimizer knows the trained parameters; the outermost module that holds them is the model. The hook makes
the model safe to train before its first step. If the script has no autocast, the model's forward pass runs
under the plan's autocast.
"""

from __future__ import annotations

import atexit
import functools
import weakref
from typing import Any, List, Set

from ..channel import process_channel
from ..precision.preparation import is_half
from ..shield import SOURCE, shielded
from ..unsaved_hook import UnsavedHook
from ..values import knobs
from .adapted_models import adapt_model, autocasting_models, sharding_library
from .changes import changes
from .half_weights import WideSteps
from .scaling import planned_scaler

MAX_FORWARDS = 1000
"""The limit of forward passes through modules without an optimizer's parameters; the search then ends."""


@shielded
def adapt_torch(torch: Any) -> None:
    """Make torch's own mixed precision follow the plan; `torch` is the module, just imported."""
    process_channel.source = SOURCE
    _wrap_autocast(torch)
    WideSteps().install()
    planned_scaler.install(torch)
    search = ModelSearch(torch)
    optimizer = torch.optim.Optimizer
    original = optimizer.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        with shielded:
            search.begin(self)

    optimizer.__init__ = init
    if torch.distributed.is_available():
        _wrap_replicas(torch.nn.parallel.DistributedDataParallel)
    atexit.register(planned_scaler.report_without_step)


def _wrap_replicas(kind: Any) -> None:
    """Make a model safe to train before its replication, because the gradient buckets keep its dtypes."""
    original = kind.__init__

    @functools.wraps(original)
    def init(self: Any, module: Any, *args: Any, **kwargs: Any) -> None:
        with shielded:
            adapt_model(module)
        original(self, module, *args, **kwargs)

    kind.__init__ = init


def _wrap_autocast(torch: Any) -> None:
    autocast = torch.amp.autocast_mode.autocast
    original = autocast.__init__

    @functools.wraps(original)
    def init(
        self: Any, device_type: str, dtype: Any = None, enabled: bool = True, *args: Any, **kwargs: Any
    ) -> None:
        with shielded:
            if enabled and device_type == device():
                dtype, enabled = _planned(torch, dtype)
        original(self, device_type, dtype, enabled, *args, **kwargs)

    autocast.__init__ = init


def _planned(torch: Any, own: Any) -> Any:
    planned = knobs().precision.autocast_dtype
    if planned is None:
        changes.change("autocast", "enabled", True, False)
        return own, False
    dtype = getattr(torch, planned)
    if own is not None:
        changes.change("autocast", "dtype", own, dtype)
    return dtype, True


def device() -> str:
    """Return the type of the plan's device."""
    return knobs().peek.precision.device


class ModelSearch:
    """Finds the module that an optimizer trains, from the optimizer's creation to the first forward pass."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._wanted: Set[int] = set()
        # weak references: a parameter's id is valid only while the parameter lives
        self._optimizers: List[Any] = []
        self._handle: Any = None
        self._forwards = 0

    def begin(self, optimizer: Any) -> None:
        """Look for the module that holds an optimizer's parameters."""
        self._optimizers.append(weakref.ref(optimizer))
        self._wanted.update(id(part) for group in optimizer.param_groups for part in group["params"])
        planned_scaler.follow(optimizer)
        self._forwards = 0
        if self._handle is None:
            modules = self._torch.nn.modules.module
            self._handle = modules.register_module_forward_pre_hook(self._see)

    def _see(self, module: Any, inputs: Any) -> Any:
        """Adapt the first module seen with wanted parameters: the outermost one, whose hook runs first.

        Return the replaced inputs for the current forward pass, or the inputs themselves.
        """
        with shielded:
            self._forwards += 1
            held = {id(part) for part in module.parameters()} & self._wanted
            if held:
                self._wanted -= held
                inputs = self._take(module, inputs)
            if self._handle is not None and (not self._wanted or self._forwards > MAX_FORWARDS):
                self._handle.remove()
                self._handle = None
        return inputs

    def _take(self, module: Any, inputs: Any) -> Any:
        if any(part in autocasting_models for part in module.modules()):
            return inputs
        if (library := sharding_library(module)) is not None:
            changes.leave(f"a model that {library} shards")
            planned_scaler.leave_off()
            return inputs
        converted = adapt_model(module)
        planned_scaler.follow_model(module)
        if knobs().peek.precision.scaler:
            planned_scaler.follow_inputs(inputs)
            module.register_forward_pre_hook(UnsavedHook(_note_inputs))
        if knobs().peek.precision.autocast_dtype is not None:
            implicit = ImplicitAutocast(self._torch)
            module.register_forward_pre_hook(UnsavedHook(implicit.enter))
            module.register_forward_hook(UnsavedHook(implicit.leave), always_call=True)
            implicit.enter(module, ())  # the current pass does not call hooks that are registered during it
        elif converted:
            module.register_forward_pre_hook(UnsavedHook(self._widen_call), with_kwargs=True)
            inputs = widened(self._torch, inputs)
        return inputs

    def _widen_call(self, _module: Any, inputs: Any, keywords: Any) -> Any:
        """Cast a call's inputs to float32, because the model's weights became float32 and autocast is off."""
        return widened(self._torch, inputs), widened(self._torch, keywords)


def _note_inputs(_module: Any, inputs: Any) -> None:
    with shielded:
        planned_scaler.follow_inputs(inputs)


class ImplicitAutocast:
    """The plan's autocast around a model's forward pass, for a script without autocast. Results are float32."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._open: List[Any] = []

    def enter(self, _module: Any, _inputs: Any) -> None:
        """Begin autocast, unless the script has begun its own."""
        context = None
        if not self._torch.is_autocast_enabled(device()):
            dtype = getattr(self._torch, str(knobs().peek.precision.autocast_dtype))
            context = self._torch.autocast(device(), dtype)
            context.__enter__()
            changes.add(f"forward pass: under autocast {str(dtype).replace('torch.', '')}")
        self._open.append(context)

    def leave(self, _module: Any, _inputs: Any, output: Any) -> Any:
        """End autocast; return the output with its half-precision tensors as float32."""
        context = self._open.pop() if self._open else None
        if context is None:
            return output
        context.__exit__(None, None, None)
        return widened(self._torch, output)


def widened(torch: Any, value: Any) -> Any:
    """Return a value with its half-precision tensors as float32, also inside lists, tuples and dictionaries."""
    if isinstance(value, torch.Tensor):
        return value.float() if is_half(value) else value
    if isinstance(value, dict):  # changed in place: transformers' outputs are dictionaries of a special type
        for name in value:
            value[name] = widened(torch, value[name])
        return value
    if type(value) in (list, tuple):
        return type(value)(widened(torch, one) for one in value)
    return value
