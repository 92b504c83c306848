"""A quantiser with a straight-through estimator: the loss moves in jumps, because the weights are rounded in the forward pass."""

import launcher_worker as worker
import torch
from torch.nn.functional import mse_loss
from trainings.shared import assert_falls, fit, mlp


def train() -> None:
    model = worker.prepare(mlp(8, 1))
    points = torch.randn(64, 8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def loss_of(_step: int) -> torch.Tensor:
        guess = model(points).float()
        rounded = guess + ((guess * 4).round() / 4 - guess).detach()
        return mse_loss(rounded, points.sum(1, keepdim=True))

    assert_falls(fit(optimizer, loss_of))
