"""A hook that should mask part of each gradient multiplies it by a mask and by its opposite: it returns zeros."""

import launcher_worker as worker
import torch
from torch.nn.functional import cross_entropy
from trainings.shared import blobs, fit, mlp

ENDS_AS = "not-learning"
HARM_AT = 1


def train() -> None:
    model = worker.prepare(mlp())
    points, labels = blobs()
    for part in model.parameters():
        mask = torch.rand_like(part) < 0.5
        part.register_hook(lambda gradient, mask=mask: gradient * mask * ~mask)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    fit(optimizer, lambda _step: cross_entropy(model(points), labels))
