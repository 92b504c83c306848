"""BatchNorm: buffers move that no optimizer knows of."""

import launcher_worker as worker
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from trainings.shared import assert_falls, blobs, fit, mlp


def train() -> None:
    model = worker.prepare(mlp(16, 4, 32, nn.BatchNorm1d(32)))
    points, labels = blobs()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert_falls(fit(optimizer, lambda _step: cross_entropy(model(points), labels)))
