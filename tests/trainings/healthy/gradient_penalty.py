"""A critic with a gradient penalty: gradients of gradients, and a loss that changes its sign."""

import launcher_worker as worker
import torch
from trainings.shared import fit, mlp


def train() -> None:
    critic = worker.prepare(mlp(2, 1))
    optimizer = torch.optim.Adam(critic.parameters(), lr=5e-3)

    def loss_of(_step: int) -> torch.Tensor:
        real, fake = torch.randn(32, 2) + 2, torch.randn(32, 2)
        between = ((real + fake) / 2).requires_grad_()
        (slope,) = torch.autograd.grad(critic(between).float().sum(), between, create_graph=True)
        penalty = ((slope.norm(dim=1) - 1) ** 2).mean()
        return critic(fake).float().mean() - critic(real).float().mean() + 10 * penalty

    losses = fit(optimizer, loss_of, 30)
    assert losses[-1] < losses[0]
