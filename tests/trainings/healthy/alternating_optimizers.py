"""Two optimizers of one model take turns: each stands still for five steps."""

import launcher_worker as worker
import torch
from torch.nn.functional import cross_entropy
from trainings.shared import assert_falls, blobs, fit_scaled, mlp

STEPS = 40


def train() -> None:
    model = worker.prepare(mlp())
    points, labels = blobs()
    optimizers = [torch.optim.Adam(model[layer].parameters(), lr=1e-2) for layer in (0, 2)]
    losses = []
    for step in range(1, STEPS + 1):
        with worker.autocast():
            loss = cross_entropy(model(points), labels)
        fit_scaled(optimizers[step // 5 % 2], loss)
        losses.append(loss.item())
        worker.log(step, loss=loss)
    assert_falls(losses)
