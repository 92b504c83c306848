"""SGD with a momentum of 1.0: no gradient is ever forgotten, so the weights swing around the goal for ever."""

import launcher_worker as worker
import torch
from torch.nn.functional import mse_loss
from trainings.shared import fit

ENDS_AS = "not-learning"
HARM_AT = 1


def train() -> None:
    model = worker.prepare(torch.nn.Linear(8, 1))
    points = torch.randn(64, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=1.0)
    fit(optimizer, lambda _step: mse_loss(model(points).float(), points.sum(1, keepdim=True)))
