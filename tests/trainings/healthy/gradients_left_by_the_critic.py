"""A GAN that does not detach its fakes: the critic's backward pass leaves gradients in the generator, which are zeroed late."""

import launcher_worker as worker
import torch
from torch.nn.functional import binary_cross_entropy_with_logits as judged
from trainings.shared import fit_scaled, mlp

STEPS = 60


def train() -> None:
    generator, critic = worker.prepare(mlp(4, 2)), worker.prepare(mlp(2, 1))
    make = torch.optim.Adam(generator.parameters(), lr=2e-3)
    judge = torch.optim.Adam(critic.parameters(), lr=5e-3)
    before = generator(torch.zeros(1, 4)).detach().clone()
    for step in range(1, STEPS + 1):
        real, noise = torch.randn(32, 2) * 0.1 + 3, torch.randn(32, 4)
        with worker.autocast():
            guesses = critic(torch.cat([real, generator(noise).to(real.dtype)]))
            loss = judged(guesses.float(), torch.cat([torch.ones(32, 1), torch.zeros(32, 1)]))
        fit_scaled(judge, loss)
        with worker.autocast():
            guesses = critic(generator(noise))
            loss = judged(guesses.float(), torch.ones(32, 1))
        fit_scaled(make, loss)
        worker.log(step, loss=loss)
    assert (generator(torch.zeros(1, 4)) - before).norm() > 0.1
