"""A converged model whose bias is near zero, and a first batch with little noise: the bias moves far, and the loss stays above the first."""

import launcher_worker as worker
import torch
from torch import nn
from trainings.shared import fit

STEPS = 60


def train() -> None:
    model = nn.Linear(8, 1)
    nn.init.ones_(model.weight)
    nn.init.constant_(model.bias, 0.001)
    model = worker.prepare(model)
    before = model.weight.detach().clone()

    def loss_of(step: int) -> torch.Tensor:
        points = torch.randn(16, 8)
        noise = (0.2 if step == 1 else 0.8) * torch.randn(16, 1)
        return (model(points) - points.sum(1, keepdim=True) - noise).float().pow(2).mean()

    fit(torch.optim.AdamW(model.parameters(), lr=1e-2), loss_of, STEPS)
    assert (model.weight - before).abs().max() < 0.2
