"""Gradients clipped to a thousandth of their norm: the loss falls slowly."""

import launcher_worker as worker
import torch
from torch.nn.functional import cross_entropy
from trainings.shared import assert_falls, blobs, fit, mlp

STEPS = 40


def train() -> None:
    model = worker.prepare(mlp())
    points, labels = blobs()
    optimizer = torch.optim.SGD(model.parameters(), lr=20.0)
    losses = fit(optimizer, lambda _step: cross_entropy(model(points), labels), STEPS, model=model, clip=1e-3)
    assert_falls(losses, to=0.97)
