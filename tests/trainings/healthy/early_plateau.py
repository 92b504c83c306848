"""A saddle: for the first thirty steps the loss hardly changes, then it falls."""

import launcher_worker as worker
import torch
from torch import nn
from torch.nn.functional import mse_loss
from trainings.shared import fit

STEPS = 120


def train() -> None:
    model = nn.Sequential(*(nn.Linear(8, 8, bias=False) for _ in range(3)))
    with torch.no_grad():
        for part in model.parameters():
            part.mul_(0.2)
    worker.prepare(model)
    points = torch.randn(64, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = fit(optimizer, lambda _step: mse_loss(model(points).float(), points), STEPS)
    assert losses[29] > 0.97 * losses[4]
    assert losses[-1] < 0.8 * losses[0]
