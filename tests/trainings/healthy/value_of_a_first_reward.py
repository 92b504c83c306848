"""The value function of a policy that earns its first reward at step 30: the loss jumps from nothing to thousands."""

import launcher_worker as worker
import torch
from torch.nn.functional import mse_loss
from trainings.shared import fit, mlp

STEPS = 90


def train() -> None:
    model = worker.prepare(mlp(8, 1, 64))
    points = torch.randn(256, 8)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def loss_of(step: int) -> torch.Tensor:
        some = points[torch.randperm(256)[:32]]
        returns = 100 * (some[:, :1] > 1.0) * (torch.rand(32, 1) < 0.5) if step >= 30 else torch.zeros(32, 1)
        return mse_loss(model(some).float(), returns)

    losses = fit(optimizer, loss_of, STEPS)
    assert losses[31] > 100 * losses[0]
