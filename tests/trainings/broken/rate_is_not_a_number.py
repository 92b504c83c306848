"""A warm-up of no steps: numpy divides zero by zero, and the first rate is NaN."""

import launcher_worker as worker
import numpy as np
import torch
from torch.nn.functional import cross_entropy
from trainings.shared import blobs, fit, mlp

WARM_UP = 0
ENDS_AS = "nan-divergence"
HARM_AT = 1


def train() -> None:
    model = worker.prepare(mlp())
    points, labels = blobs()
    with np.errstate(invalid="ignore", divide="ignore"):
        rates = np.minimum(1.0, np.arange(30) / np.float64(WARM_UP))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rates[step])
    fit(optimizer, lambda _step: cross_entropy(model(points), labels))
