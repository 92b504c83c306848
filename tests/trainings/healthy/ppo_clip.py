"""PPO: the clipped ratio gives no gradient for points outside of its bounds, and the loss is near zero all the time."""

import launcher_worker as worker
import torch
from trainings.shared import fit_scaled, mlp

STEPS = 60
EPOCHS = 4  # steps on the same episodes


def train() -> None:
    policy = worker.prepare(mlp(4, 2))
    optimizer = torch.optim.Adam(policy.parameters(), lr=2e-2)
    earned = []
    for step in range(1, STEPS + 1):
        if step % EPOCHS == 1:
            states = torch.randn(64, 4)
            with torch.no_grad():
                arms = torch.distributions.Categorical(logits=policy(states).float())
            actions = arms.sample()
            before, rewards = arms.log_prob(actions), (actions == (states[:, 0] > 0)).float()
            advantages = rewards - rewards.mean()
        with worker.autocast():
            now = torch.distributions.Categorical(logits=policy(states).float()).log_prob(actions)
        ratio = (now - before).exp()
        loss = -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
        fit_scaled(optimizer, loss)
        earned.append(rewards.mean().item())
        worker.log(step, loss=loss, reward=earned[-1])
    assert earned[-1] > earned[0] + 0.2
