"""The models under the guard, and the readings of their parameters at each step."""

from __future__ import annotations

import weakref
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

from .optimizers import parameters_with_gradients
from .samples import BASE_TENSORS, ELEMENTS, WEIGHT_TENSORS, Sample, can_be_sampled, local, sampled_indices
from .twins import follow_twins, twin_of

GRADIENT_TENSORS = 4  # the number of gradients read at each step, in rotation
# The base moves if a step changes it by more than this share of its norm. Merging and unmerging an
# adapter changes it by about 0.01.
BASE_DRIFT = 0.05


class WatchedModels:
    """The models in training in this process, with samples of their trainable and their frozen weights.

    The samples are chosen at the first step, and again when parameters are replaced or unfrozen.
    """

    def __init__(self) -> None:
        self._models: "weakref.WeakSet[Any]" = weakref.WeakSet()
        self._moving: List[Any] = []
        self.forget()

    def __bool__(self) -> bool:
        return bool(self._models)

    def __contains__(self, model: Any) -> bool:
        return model in self._models

    def add(self, model: Any, moving: Sequence[str] = ()) -> None:
        """Watch another model; samples are chosen again.

        `moving` lists name prefixes of frozen parameters that the script moves on purpose.
        """
        names = [(name, part) for name, part in model.named_parameters() if name.startswith(tuple(moving))]
        unknown = [begin for begin in moving if not any(name.startswith(begin) for name, _ in names)]
        if unknown:
            raise ValueError(f"moving: no parameter's name begins with {unknown[0]!r}")
        self._models.add(model)
        self._moving = [*self._moving, *(part for _, part in names)]
        self.forget()

    def forget(self) -> None:
        """Drop the samples."""
        self.trainable: List[Any] = []
        self._dtypes: List[Any] = []
        self._biases: Set[int] = set()  # the ids of the biases
        self._weights: Optional[Sample] = None
        self._base: Optional[Sample] = None
        # for each tensor of the base sample, the trained tensor that it may follow
        self._twins: List[Any] = []
        self._cursor = 0
        # optimizer -> its number of parameters, and its trainables
        self._held: "weakref.WeakKeyDictionary[Any, Tuple[int, List[Any]]]" = weakref.WeakKeyDictionary()

    def first(self) -> Any:
        """Return one of the models, usually the only one."""
        return next(iter(self._models))

    def choose_samples(self) -> None:
        """Choose the elements to read, and read them for the first time."""
        named = {id(part): (name, part) for model in self._models for name, part in model.named_parameters()}
        parameters = [part for _, part in named.values()]
        self.trainable = [part for part in parameters if part.requires_grad]
        self._biases = {place for place, (name, _) in named.items() if name.split(".")[-1] == "bias"}
        self._held.clear()
        self._dtypes = [part.dtype for part in self.trainable]
        plain = [part for part in parameters if can_be_sampled(part)]
        trainable = [part for part in plain if part.requires_grad]
        moving = {id(part) for part in self._moving}
        frozen = [part for part in plain if not part.requires_grad and id(part) not in moving]
        self._weights = Sample(trainable, WEIGHT_TENSORS) if trainable else None
        self._base = Sample(frozen, BASE_TENSORS) if frozen else None
        trained = [named[id(part)] for part in trainable]
        self._twins = (
            [twin_of(named[id(part)], trained) for part, _ in self._base.parts] if self._base else []
        )
        for sample in self._samples():
            sample.read()

    @property
    def has_samples(self) -> bool:
        """Whether trainable weights are sampled."""
        return self._weights is not None

    @property
    def is_sample_trainable(self) -> bool:
        """Whether all sampled trainable weights are still trainable, and all sampled frozen ones still frozen."""
        if self._weights is None or not all(part.requires_grad for part, _ in self._weights.parts):
            return False
        return self._base is None or not any(part.requires_grad for part, _ in self._base.parts)

    @property
    def is_sample_current(self) -> bool:
        """Whether all sampled parameters still belong to a model; a script may replace parameters."""
        current = {id(part) for model in self._models for part in model.parameters()}
        return all(id(part) in current for sample in self._samples() for part, _ in sample.parts)

    @property
    def have_moved(self) -> bool:
        """Whether any sampled weight has moved since the last reading, for any reason."""
        return self._weights is not None and bool((self._weights.read()[1] != 0).any())

    @property
    def has_new_dtypes(self) -> bool:
        """Whether a trainable was cast since the samples were chosen."""
        return [part.dtype for part in self.trainable] != self._dtypes

    @property
    def is_finite(self) -> bool:
        """Whether every element of every trainable is finite; this reads all of them."""
        return all(bool(local(part).isfinite().all()) for part in self.trainable if can_be_sampled(part))

    def sample_largest_gradients(self, optimizer: Any) -> None:
        """Sample, from now on, weights that this optimizer must move: those with the largest gradients.

        A random sample may miss the weights that are trained: a few rows of an embedding, or only a head.
        """
        given = {id(part) for group in optimizer.param_groups for part in group["params"]}
        with_gradient = [
            part for part in self.trainable if part.grad is not None and can_be_sampled(part.grad)
        ]
        candidates = [part for part in with_gradient if id(part) in given] or with_gradient
        if candidates:
            self._weights = Sample(candidates, WEIGHT_TENSORS)
            self._weights.aim_at_gradients()

    def measure(self, *, must_move: bool, is_at_start: bool) -> Dict[str, Any]:
        """Read the samples; return their figures as tensors on their device.

        `moved` only if `must_move`; `near`, whether the weights are where they began, only if `is_at_start` too.
        """
        numbers: Dict[str, Any] = {}
        if self._weights is not None:
            elements, moves = self._weights.read()
            numbers["finite"] = (elements.isfinite().all(dim=1) | ~self._weights.norms.isfinite()).all()
            numbers["leapt"] = self._weights.have_leapt(moves)
            if must_move:
                numbers["moved"] = (moves != 0).any()
                if is_at_start:
                    numbers["near"] = self._weights.are_at_start(elements)
        if self._base is not None:
            elements, moves = self._base.read()
            drifts = moves.norm(dim=1) > BASE_DRIFT * self._base.norms
            if any(twin is not None for twin in self._twins):
                drifts &= ~follow_twins(self._base.parts, self._twins, elements, moves)
            numbers["base"] = drifts.any()
        return numbers

    def read_gradients(self, optimizer: Any, *, check_all: bool) -> Optional[Tuple[Any, Any]]:
        """Return the size of the largest element of the next few gradients of an optimizer, and whether all are zero.

        `check_all` reads every gradient for the second figure, because an embedding's gradient may be zero
        almost everywhere. Both figures are tensors on the gradients' device. None if no trainable has a
        readable gradient.
        """
        import torch

        if not self.trainable and not parameters_with_gradients(optimizer):  # everything was frozen
            return torch.zeros(()), torch.ones(())
        rows: List[Any] = []
        parts: List[Any] = []
        held = self._held_by(optimizer)
        for _ in held:
            self._cursor = (self._cursor + 1) % len(held)
            gradient = held[self._cursor].grad
            if gradient is not None and can_be_sampled(gradient):
                gradient = local(gradient)
                device = rows[0].device if rows else gradient.device
                indices = sampled_indices(gradient.numel(), ELEMENTS // GRADIENT_TENSORS, gradient.device)
                rows.append(gradient.take(indices).to(device, torch.float32, non_blocking=True))
                parts.append(held[self._cursor])
            if len(rows) == GRADIENT_TENSORS:
                break
        if not rows:
            return None
        sizes = torch.stack(rows).abs().amax(dim=1)
        alive = (sizes != 0).unbind()
        if check_all:
            parts = [part for part in held if part.grad is not None]
            alive = [local(part.grad).any().to(sizes.device) for part in parts]
        return sizes.max(), ~self._are_alive(parts, alive)

    def _are_alive(self, parts: Sequence[Any], alive: Sequence[Any]) -> Any:
        """Return, as a bool tensor, whether gradients train a model, by whether each has an element other than zero.

        A single bias does not count if all weights have zero gradients: the bias of a last layer has a gradient
        even if no input reaches the output.
        """
        import torch

        weights = [one for part, one in zip(parts, alive) if id(part) not in self._biases]  # noqa: B905 - Python 3.8 has no `strict`
        if not weights:
            return torch.stack(list(alive)).any()
        return torch.stack(weights).any() | (torch.stack(list(alive)).sum() > 1)

    def _held_by(self, optimizer: Any) -> List[Any]:
        """Return the trainables that an optimizer holds, or all if it holds none.

        Other trainables may have gradients of an earlier step.
        """
        size = sum(len(group["params"]) for group in optimizer.param_groups)
        known_size, held = self._held.get(optimizer, (-1, []))
        if known_size != size:
            given = {id(part) for group in optimizer.param_groups for part in group["params"]}
            held = [part for part in self.trainable if id(part) in given] or self.trainable
            self._held[optimizer] = (size, held)
        return held

    def _samples(self) -> List[Sample]:
        return [sample for sample in (self._weights, self._base) if sample is not None]
