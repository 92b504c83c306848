"""Policy gradients without a clip: from step 8 on the old log-probabilities are wrong, and the ratio overflows."""

import launcher_worker as worker
import torch
from trainings.shared import fit, mlp

ENDS_AS = "nan-divergence"
HARM_AT = 8


def train() -> None:
    policy = worker.prepare(mlp(4, 2))
    states, actions = torch.randn(64, 4), torch.randint(2, (64,))
    advantages = torch.randn(64)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)

    def loss_of(step: int) -> torch.Tensor:
        now = policy(states).float().log_softmax(-1)[torch.arange(64), actions]
        before = now.detach() - (100 if step >= HARM_AT else 0)
        return -((now - before).exp() * advantages).mean()

    fit(optimizer, loss_of)
