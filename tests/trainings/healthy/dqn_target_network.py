"""Q-learning: every ten steps the target network jumps to the trained one, and the loss jumps with it."""

import copy

import launcher_worker as worker
import torch
from torch import nn
from torch.nn.functional import smooth_l1_loss
from trainings.shared import fit, mlp, trainables

STEPS = 60
COPIED_EVERY = 10


class Agent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q = mlp(4, 2)
        self.target = copy.deepcopy(self.q).requires_grad_(False)


def train() -> None:
    agent = worker.prepare(Agent())
    dice = torch.Generator().manual_seed(1)
    states, following = torch.randn(128, 4, generator=dice), torch.randn(128, 4, generator=dice)
    actions = torch.randint(2, (128, 1), generator=dice)
    rewards = (states[:, 0] > 0).float() * 5
    optimizer = torch.optim.Adam(trainables(agent), lr=1e-2)

    def loss_of(step: int) -> torch.Tensor:
        if step % COPIED_EVERY == 0:
            agent.target.load_state_dict(agent.q.state_dict())
        with torch.no_grad():
            goal = rewards + 0.9 * agent.target(following).float().max(1).values
        return smooth_l1_loss(agent.q(states).float().gather(1, actions)[:, 0], goal)

    losses = fit(optimizer, loss_of, STEPS)
    assert min(losses[:COPIED_EVERY]) < losses[0]
    assert agent.q(states).mean() > 1
