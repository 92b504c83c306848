"""The models under the guard, and what is read from their parameters at each step."""

from __future__ import annotations

import weakref
from typing import Any, Dict, List, Optional, Tuple

from .samples import BASE_TENSORS, ELEMENTS, WEIGHT_TENSORS, Sample, can_be_sampled, sampled_indices

GRADIENT_TENSORS = 4  # read at each step, the next ones each time
LEAST_SIZE = 0.05  # of the largest norm: a smaller tensor has only begun to be trained
BASE_DRIFT = 0.05  # of its norm in a step; merging an adapter and unmerging it drifts by about 0.01


class WatchedModels:
    """The models of this process that train, with samples of their trainable and their frozen weights.

    The samples are chosen at the first step, and again when the parameters are replaced or unfrozen.
    """

    def __init__(self) -> None:
        self._models: "weakref.WeakSet[Any]" = weakref.WeakSet()
        self.forget()

    def __bool__(self) -> bool:
        return bool(self._models)

    def __contains__(self, model: Any) -> bool:
        return model in self._models

    def add(self, model: Any) -> None:
        """Watch a model too; samples are chosen anew."""
        self._models.add(model)
        self.forget()

    def forget(self) -> None:
        """Drop the samples."""
        self.trainable: List[Any] = []
        self._dtypes: List[Any] = []
        self._weights: Optional[Sample] = None
        self._base: Optional[Sample] = None
        self._cursor = 0

    def first(self) -> Any:
        """Return one of the models, usually the only one."""
        return next(iter(self._models))

    def choose_samples(self) -> None:
        """Choose which elements to read, and read them for the first time."""
        parameters = {id(part): part for model in self._models for part in model.parameters()}.values()
        self.trainable = [part for part in parameters if part.requires_grad]
        self._dtypes = [part.dtype for part in self.trainable]
        plain = [part for part in parameters if can_be_sampled(part)]
        trainable = [part for part in plain if part.requires_grad]
        frozen = [part for part in plain if not part.requires_grad]
        self._weights = Sample(trainable, WEIGHT_TENSORS) if trainable else None
        self._base = Sample(frozen, BASE_TENSORS) if frozen else None
        for sample in self._samples():
            sample.read()

    @property
    def has_samples(self) -> bool:
        """Whether trainable weights are sampled."""
        return self._weights is not None

    @property
    def is_sample_trainable(self) -> bool:
        """Whether everything sampled as trainable still is."""
        return self._weights is not None and all(part.requires_grad for part, _ in self._weights.parts)

    @property
    def is_sample_current(self) -> bool:
        """Whether everything sampled still belongs to a model; a script may replace parameters."""
        current = {id(part) for model in self._models for part in model.parameters()}
        return all(id(part) in current for sample in self._samples() for part, _ in sample.parts)

    @property
    def has_new_dtypes(self) -> bool:
        """Whether a trainable was cast since the samples were chosen."""
        return [part.dtype for part in self.trainable] != self._dtypes

    @property
    def is_finite(self) -> bool:
        """Whether every element of every trainable is finite; this reads all of them."""
        return all(bool(part.isfinite().all()) for part in self.trainable if can_be_sampled(part))

    def sample_largest_gradients(self, optimizer: Any) -> None:
        """Sample from now on what this optimizer must move: the elements with the largest gradients it was given.

        A random sample may miss what is trained, such as the used rows of an embedding, or only a head.
        """
        given = {id(part) for group in optimizer.param_groups for part in group["params"]}
        with_gradient = [
            part for part in self.trainable if part.grad is not None and can_be_sampled(part.grad)
        ]
        candidates = [part for part in with_gradient if id(part) in given] or with_gradient
        if candidates:
            self._weights = Sample(candidates, WEIGHT_TENSORS)
            self._weights.aim_at_gradients()

    def measure(self, *, must_move: bool) -> Dict[str, Any]:
        """Read the samples; return what they show as tensors on their device, `moved` only if they must move."""
        numbers: Dict[str, Any] = {}
        if self._weights is not None:
            elements, moves = self._weights.read()
            norms = self._weights.norms
            # A LoRA's B begins near zero, so that any step is larger than B itself.
            has_size = norms > LEAST_SIZE * norms.max()
            leaps = ~(moves.norm(dim=1) <= norms) & has_size  # so that NaN counts as a leap
            numbers["finite"] = (elements.isfinite().all(dim=1) | ~norms.isfinite()).all()
            numbers["leapt"] = has_size.any() & (2 * leaps.sum() >= has_size.sum())
            if must_move:
                numbers["moved"] = (moves != 0).any()
        if self._base is not None:
            _, moves = self._base.read()
            numbers["base"] = (moves.norm(dim=1) > BASE_DRIFT * self._base.norms).any()
        return numbers

    def read_gradients(self, *, check_all: bool) -> Optional[Tuple[Any, Any]]:
        """Return whether the next few gradients have a non-finite element, and whether all are zero.

        `check_all` reads every gradient for the second question: an embedding's may be zero almost everywhere.
        Both are tensors on their device. None if no trainable has a gradient that can be read.
        """
        import torch

        rows: List[Any] = []
        for _ in self.trainable:
            self._cursor = (self._cursor + 1) % len(self.trainable)
            gradient = self.trainable[self._cursor].grad
            if gradient is not None and can_be_sampled(gradient):
                device = rows[0].device if rows else gradient.device
                indices = sampled_indices(gradient.numel(), ELEMENTS // GRADIENT_TENSORS, gradient.device)
                rows.append(gradient.take(indices).to(device, torch.float32, non_blocking=True))
            if len(rows) == GRADIENT_TENSORS:
                break
        if not rows:
            return None
        elements = torch.cat(rows)
        is_zero = (elements == 0).all()
        if check_all:
            gradients = [part.grad for part in self.trainable if part.grad is not None]
            is_zero = ~torch.stack([gradient.any().to(elements.device) for gradient in gradients]).any()
        return ~elements.isfinite().all(), is_zero

    def _samples(self) -> List[Sample]:
        return [sample for sample in (self._weights, self._base) if sample is not None]
