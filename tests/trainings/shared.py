"""What the cases share: tiny models, data that can be learned, and the loop that most scripts have."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import launcher_worker as worker
import torch
from torch import nn

Loss = Callable[[int], Any]


def blobs(count: int = 64, classes: int = 4, width: int = 16) -> tuple[Any, Any]:
    """Return points around a centre for each class, and the classes: `[count, width]` and `[count]`."""
    dice = torch.Generator().manual_seed(0)
    centres = torch.randn(classes, width, generator=dice)
    labels = torch.arange(count) % classes
    return centres[labels] + 0.3 * torch.randn(count, width, generator=dice), labels


def mlp(width: int = 16, out: int = 4, hidden: int = 32, *between: nn.Module) -> nn.Sequential:
    """Return a perceptron of two layers; `between` follows its nonlinearity."""
    return nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), *between, nn.Linear(hidden, out))


def trainables(model: nn.Module) -> list[Any]:
    """Return the parameters of a model that are trained."""
    return [part for part in model.parameters() if part.requires_grad]


def fit(
    optimizer: Any, loss_of: Loss, steps: int = 30, *, model: Any = None, clip: float = 0.0
) -> list[float]:
    """Train in plain torch with the plan's autocast and scaler, and return the loss of each step.

    `loss_of(step)` makes a forward pass. The gradients of `model`, if given, are clipped to a norm of `clip`.
    """
    scaler, losses = worker.scaler(), []
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        with worker.autocast():
            loss = loss_of(step)
        scaler.scale(loss).backward()
        if clip:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        scaler.step(optimizer)
        scaler.update()
        losses.append(float(loss.detach()))
        worker.log(step, loss=losses[-1])
    return losses


def fit_scaled(optimizer: Any, loss: Any) -> None:
    """Make one step of one of several optimizers, each of which has a scaler of its own."""
    scaler = _scalers.setdefault(id(optimizer), worker.scaler())
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()


_scalers: dict[int, Any] = {}  # by the id of their optimizer


def assert_falls(losses: Sequence[float], to: float = 0.9) -> None:
    """Raise unless the last fifth of the losses lies below a share of the first fifth: the training is healthy."""
    part = max(1, len(losses) // 5)
    first, last = statistics.mean(losses[:part]), statistics.mean(losses[-part:])
    assert last < to * first, f"the loss went from {first:.4g} to {last:.4g}: {losses}"
