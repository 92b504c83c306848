"""A classifier with plain SGD: nothing looks sick."""

import launcher_worker as worker
import torch
from torch.nn.functional import cross_entropy
from trainings.shared import assert_falls, blobs, fit, mlp


def train() -> None:
    model = worker.prepare(mlp())
    points, labels = blobs()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    assert_falls(fit(optimizer, lambda _step: cross_entropy(model(points), labels)))
