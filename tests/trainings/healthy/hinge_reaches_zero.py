"""A hinge loss reaches exactly zero, and all gradients with it: every point is beyond the margin, the task is done."""

import launcher_worker as worker
import torch
from torch.nn.functional import multi_margin_loss
from trainings.shared import blobs, fit, mlp

STEPS = 60


def train() -> None:
    model = worker.prepare(mlp())
    points, labels = blobs()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    losses = fit(optimizer, lambda _step: multi_margin_loss(model(points).float(), labels), STEPS)
    assert losses[0] > 0.5
    assert losses[-20:] == [0.0] * 20
