"""REINFORCE with rewards that differ, whose advantages are zero by mistake: each is compared with itself."""

import launcher_worker as worker
import torch
from trainings.shared import fit_scaled, mlp

STEPS = 30
ENDS_AS = "not-learning"
HARM_AT = 1


def train() -> None:
    policy = worker.prepare(mlp(4, 2))
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    for step in range(1, STEPS + 1):
        states = torch.randn(32, 4)
        with worker.autocast():
            arms = torch.distributions.Categorical(logits=policy(states).float())
            actions = arms.sample()
            rewards = (actions == (states[:, 0] > 0)).float()
            loss = -(arms.log_prob(actions) * (rewards - rewards)).mean()
        fit_scaled(optimizer, loss)
        worker.log(step, loss=loss, reward=rewards.mean(), reward_std=rewards.std())
