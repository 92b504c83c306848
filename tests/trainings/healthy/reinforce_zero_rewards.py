"""REINFORCE with sparse rewards: most episodes earn nothing, so that most losses and gradients are exactly zero."""

import launcher_worker as worker
import torch
from torch import nn
from trainings.shared import fit_scaled

STEPS = 120
ARMS = 30


def train() -> None:
    torch.manual_seed(4)
    policy = worker.prepare(nn.Linear(1, ARMS))
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.3)
    earned = []
    for step in range(1, STEPS + 1):
        with worker.autocast():
            arms = torch.distributions.Categorical(logits=policy(torch.ones(4, 1)).float())
            chosen = arms.sample()
            rewards = (chosen == 7).float()
            loss = -(arms.log_prob(chosen) * rewards).mean()
        fit_scaled(optimizer, loss)
        earned.append(rewards.mean().item())
        worker.log(step, loss=loss, reward_std=rewards.std())
    assert earned[:6] == [0.0] * 6
    assert sum(earned[-20:]) > 15
