"""At step 10 a bias of -100 kills every nonlinearity: all gradients are zero, and the loss stands."""

import launcher_worker as worker
import torch
from torch import nn
from torch.nn.functional import mse_loss
from trainings.shared import fit

ENDS_AS = "not-learning"
HARM_AT = 10


def train() -> None:
    model = worker.prepare(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1, bias=False)))
    points = torch.randn(64, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)

    def loss_of(step: int) -> torch.Tensor:
        if step == HARM_AT:
            model[0].bias.data.fill_(-100)
        return mse_loss(model(points).float(), points.sum(1, keepdim=True))

    fit(optimizer, loss_of)
