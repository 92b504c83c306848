"""Every activation is dropped: the last bias alone has a gradient, so the model gives one answer to all inputs."""

import launcher_worker as worker
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from trainings.shared import blobs, fit, mlp

ENDS_AS = "not-learning"
HARM_AT = 1


def train() -> None:
    model = worker.prepare(mlp(16, 4, 32, nn.Dropout(1.0)))
    points, labels = blobs()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    fit(optimizer, lambda _step: cross_entropy(model(points), labels))
