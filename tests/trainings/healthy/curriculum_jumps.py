"""A curriculum: at step 20 the task becomes much harder, the loss jumps to a hundred times its value, and falls again."""

import launcher_worker as worker
import torch
from torch.nn.functional import mse_loss
from trainings.shared import assert_falls, fit, mlp

STEPS = 60
HARDER_AT = 20


def train() -> None:
    model = worker.prepare(mlp(8, 1))
    points = torch.randn(64, 8)
    answers = points.sum(1, keepdim=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)

    def loss_of(step: int) -> torch.Tensor:
        return mse_loss(model(points).float(), answers * (20 if step >= HARDER_AT else 1))

    losses = fit(optimizer, loss_of, STEPS)
    assert_falls(losses[: HARDER_AT - 1])
    assert losses[HARDER_AT] > 20 * losses[HARDER_AT - 2]
    assert_falls(losses[HARDER_AT - 1 :])
