"""Reinforcement learning with resets: every 20 steps the last layer begins anew, with a new optimizer."""

import launcher_worker as worker
import torch
from torch.nn.functional import cross_entropy
from trainings.shared import blobs, fit_scaled, mlp

STEPS = 60


def train() -> None:
    model = worker.prepare(mlp())
    points, labels = blobs()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for step in range(1, STEPS + 1):
        if step % 20 == 0:
            model[2].reset_parameters()
            optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        with worker.autocast():
            loss = cross_entropy(model(points).float(), labels)
        fit_scaled(optimizer, loss)
        losses.append(loss.item())
        worker.log(step, loss=loss)
    assert losses[18] < 0.5 * losses[0]
