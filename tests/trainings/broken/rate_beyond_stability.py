"""SGD with a rate a little beyond stability: the weights change their sign at each step, and the loss grows by a tenth."""

import launcher_worker as worker
import torch
from torch import nn
from trainings.shared import fit

STEPS = 200
ENDS_AS = "nan-divergence"
HARM_AT = 1
NOTICED_WITHIN = 11  # the loss has to double before a leap counts


def train() -> None:
    model = worker.prepare(nn.Linear(4, 1, bias=False))
    points = torch.eye(4)
    optimizer = torch.optim.SGD(model.parameters(), lr=4.1)
    fit(optimizer, lambda _step: (model(points).float() ** 2).mean(), STEPS)
