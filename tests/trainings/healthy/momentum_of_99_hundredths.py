"""A momentum of 0.99: the weights overshoot, and the loss swings before it settles."""

import launcher_worker as worker
import torch
from torch.nn.functional import cross_entropy
from trainings.shared import assert_falls, blobs, fit, mlp

STEPS = 80


def train() -> None:
    model = worker.prepare(mlp())
    points, labels = blobs()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.99)
    assert_falls(fit(optimizer, lambda _step: cross_entropy(model(points), labels), STEPS), to=0.5)
