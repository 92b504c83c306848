"""A Wasserstein GAN: its critic's weights are clipped after each step, and its loss falls below zero."""

import launcher_worker as worker
import torch
from trainings.shared import fit_scaled, mlp

STEPS = 40
LARGEST_WEIGHT = 0.1


def train() -> None:
    generator, critic = worker.prepare(mlp(4, 2)), worker.prepare(mlp(2, 1))
    make = torch.optim.RMSprop(generator.parameters(), lr=2e-3)
    judge = torch.optim.RMSprop(critic.parameters(), lr=2e-3)
    for step in range(1, STEPS + 1):
        for _ in range(3):
            with worker.autocast():
                loss = (
                    critic(generator(torch.randn(32, 4)).detach()).mean()
                    - critic(torch.randn(32, 2) + 3).mean()
                )
            fit_scaled(judge, loss)
            with torch.no_grad():
                for part in critic.parameters():
                    part.clamp_(-LARGEST_WEIGHT, LARGEST_WEIGHT)
        with worker.autocast():
            loss = -critic(generator(torch.randn(32, 4))).mean()
        fit_scaled(make, loss)
        worker.log(step, loss=loss)
    assert generator(torch.randn(64, 4)).mean() > 0.3
