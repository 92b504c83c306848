"""Each step makes a new Adam, whose first update is the gradient's sign: wasteful, but it learns."""

import launcher_worker as worker
import torch
from torch.nn.functional import cross_entropy
from trainings.shared import assert_falls, blobs, fit_scaled, mlp

STEPS = 30


def train() -> None:
    model = worker.prepare(mlp())
    points, labels = blobs()
    losses = []
    for step in range(1, STEPS + 1):
        with worker.autocast():
            loss = cross_entropy(model(points), labels)
        fit_scaled(torch.optim.AdamW(model.parameters(), lr=1e-2), loss)
        losses.append(loss.item())
        worker.log(step, loss=loss)
    assert_falls(losses)
