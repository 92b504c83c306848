"""Observe the precision that a script really uses, from the start-up hook, and send it as evidence.

    startup/sitecustomize.py    calls `watch_torch` once torch is imported
    precision_seen              reads dtypes from graphs, optimizers and models

The watch looks at the first three optimizer steps of a process, then at every 256th, and sends a new
observation if it differs from the last: `{"precision_seen": {...}}`. For a training that fails before its
first step, it sends the observation when Python ends.

The watch never appears in a traceback. It does not wrap `torch.autocast.__enter__`, `GradScaler.scale` and
`Tensor.backward`: a descriptor notes each lookup, and returns torch's own method. A global hook of torch's
optimizers reports the start of a step; the hook has returned when a step fails. torch.compile sees none of
the descriptors.
"""

from __future__ import annotations

import atexit
import weakref
from typing import Any, Callable, Dict, List, Mapping, Optional, Set

from ..channel import process_channel, rank, send
from ..guard.torch_hooks import has_closure
from ..shield import SOURCE, shielded
from .precision_seen import (
    Backward,
    count,
    dtypes_of,
    frozen_of,
    models_with,
    read_graph,
    smallest_eps,
    uses_tf32,
)

FIRST_STEPS = 3
EVERY_STEPS = 256
MAX_SENT = 8


@shielded
def watch_torch(torch: Any) -> None:
    """Watch the trainings of this process; `torch` is the module."""
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    if rank() != 0:
        return
    watch = PrecisionWatch()
    _watches.append(watch)
    _note_lookups(torch.amp.autocast_mode.autocast, "__enter__", watch.see_autocast)
    _note_lookups(torch.amp.grad_scaler.GradScaler, "scale", watch.see_scaler)
    _note_lookups(torch.Tensor, "backward", watch.see_backward)
    register_optimizer_step_pre_hook(watch.before_step)
    register_optimizer_step_post_hook(watch.after_step)
    atexit.register(watch.finish)


_watches: "List[PrecisionWatch]" = []  # at most one


def note_scaling() -> None:
    """Note that the hook itself scales a loss, for a script that has no scaler."""
    for watch in _watches:
        watch.see_scaling()


class PrecisionWatch:
    """The observations of the precision since the last report, and the last report."""

    def __init__(self) -> None:
        self._steps = 0
        self._is_looking = True  # whether the watch observes the next step
        self._has_closure = False  # of the step that is under way
        self._autocasts: Set[str] = set()
        self._has_scaler = False
        self._backward: Optional[Backward] = None
        self._leaves: List[Any] = []  # weak references
        self._models: Optional[List[Any]] = None  # weak references
        self._eps: Optional[float] = None
        self._is_rounding = False  # whether bf16 weights are rounded stochastically
        self._sent: Optional[Mapping[str, object]] = None
        self._sends = 0

    @shielded
    def see_autocast(self, autocast: Any) -> None:
        """Note that autocast is entered where gradients are computed."""
        if self._is_looking and autocast._enabled:  # noqa: SLF001  # torch has no public name for it
            import torch

            if torch.is_grad_enabled():
                self._autocasts.add(str(autocast.fast_dtype).replace("torch.", ""))

    @shielded
    def see_scaler(self, scaler: Any) -> None:
        """Note that a loss is scaled."""
        if self._is_looking and not self._has_scaler:
            self._has_scaler = bool(scaler.is_enabled())

    def see_scaling(self) -> None:
        """Note that the hook scales a loss."""
        self._has_scaler = self._has_scaler or self._is_looking

    @shielded
    def see_backward(self, loss: Any) -> None:
        """Read the graph of the first loss of a step."""
        if self._is_looking and self._backward is None and getattr(loss, "grad_fn", None) is not None:
            self._backward = read_graph(loss)
            if self._models is None:
                self._leaves = [weakref.ref(leaf) for leaf in self._backward.leaves]
            # a reference to a leaf would keep its memory allocated
            self._backward = self._backward._replace(leaves=())

    def before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Observe a step that begins, unless a closure computes its gradients later."""
        self._has_closure = has_closure(args, kwargs)
        if not self._has_closure:
            self.see_step(optimizer)

    def after_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """Observe a step whose gradients a closure has computed."""
        if self._has_closure:
            self._has_closure = False
            self.see_step(optimizer)

    @shielded
    def see_step(self, optimizer: Any) -> None:
        """Observe a step whose gradients are computed."""
        self._steps += 1
        if self._is_looking:
            groups = optimizer.param_groups
            self._eps = smallest_eps(groups)
            self._is_rounding = bool(getattr(optimizer, "bf16_stochastic_round", False))  # torchao's name
            self._send([part for group in groups for part in group["params"]])
            self._autocasts, self._has_scaler, self._backward = set(), False, None
        following = self._steps + 1
        self._is_looking = self._sends < MAX_SENT and (
            following <= FIRST_STEPS or following % EVERY_STEPS == 0
        )

    @shielded
    def finish(self) -> None:
        """Send the observations of a training that made no step."""
        if self._sent is None and self._backward is not None:
            leaves = [leaf for leaf in (reference() for reference in self._leaves) if leaf is not None]
            self._send(leaves)
        process_channel.close()  # an open socket is a warning under `python -X dev`

    def _send(self, trained: List[Any]) -> None:
        seen = self._look(trained)
        if seen != self._sent:
            self._sent = seen
            self._sends += 1
            send("evidence", self._steps or None, {"precision_seen": {**seen, "steps": self._steps}}, SOURCE)

    def _look(self, trained: List[Any]) -> Mapping[str, object]:
        import torch

        if self._models is None:
            self._models, self._leaves = models_with(trained), []
        gradients: Dict[str, int] = {}
        for part in trained:
            if part.grad is not None:
                count(gradients, part.grad.dtype)
        backward = self._backward or Backward({}, (), is_compiled=False)
        return {
            "device": trained[0].device.type if trained else None,
            "autocast": sorted(self._autocasts),
            "scaler": self._has_scaler,
            "trainable": dtypes_of(trained),
            "frozen": dtypes_of(frozen_of(self._models)),
            "gradients": gradients,
            "computed": backward.computed,
            "compiled": backward.is_compiled,
            "tf32": uses_tf32(),
            "eps": self._eps,
            "stochastic_rounding": self._is_rounding,
            "torch": torch.__version__,
        }


class _Noted:
    """A descriptor for a method of a class: it reports each lookup on an object, and returns the method itself."""

    def __init__(self, method: Any, note: Callable[[Any], None]) -> None:
        self._method = method
        self._note = note

    def __get__(self, instance: Any, kind: Any = None) -> Any:
        if instance is not None:
            self._note(instance)
        return self._method.__get__(instance, kind)


def _note_lookups(kind: Any, name: str, note: Callable[[Any], None]) -> None:
    setattr(kind, name, _Noted(vars(kind).get(name) or getattr(kind, name), note))
