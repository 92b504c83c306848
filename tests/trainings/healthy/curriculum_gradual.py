"""A curriculum: the task becomes harder at each step, so that the loss rises for most of the training."""

import launcher_worker as worker
import torch
from torch.nn.functional import mse_loss
from trainings.shared import assert_falls, fit, mlp

STEPS = 60


def train() -> None:
    model = worker.prepare(mlp(8, 1))
    points = torch.randn(64, 8)
    answers = points.sum(1, keepdim=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    relative = []

    def loss_of(step: int) -> torch.Tensor:
        scale = 1 + step / 3
        loss = mse_loss(model(points).float(), answers * scale)
        relative.append(loss.item() / scale**2)
        return loss

    losses = fit(optimizer, loss_of, STEPS)
    assert max(losses) > 10 * losses[0]
    assert_falls(relative)
