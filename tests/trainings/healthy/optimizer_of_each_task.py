"""Continual learning: every six steps another task with another head, and a new optimizer for it."""

import launcher_worker as worker
import torch
from torch.nn.functional import cross_entropy
from trainings.shared import assert_falls, blobs, fit_scaled, mlp

STEPS = 48


def train() -> None:
    model = worker.prepare(mlp(16, 8))
    points, labels = blobs()
    losses = []
    for step in range(1, STEPS + 1):
        task = (step - 1) // 6 % 2
        if (step - 1) % 6 == 0:
            optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
        with worker.autocast():
            loss = cross_entropy(model(points)[:, 4 * task : 4 * task + 4], (labels + task) % 4)
        fit_scaled(optimizer, loss)
        losses.append(loss.item())
        worker.log(step, loss=loss)
    assert_falls(losses, to=0.5)
