"""Adam with a beta2 of zero: each update is divided by the gradient of its own step."""

import launcher_worker as worker
import torch
from torch.nn.functional import cross_entropy
from trainings.shared import assert_falls, blobs, fit, mlp


def train() -> None:
    model = worker.prepare(mlp())
    points, labels = blobs()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, betas=(0.0, 0.0))
    assert_falls(fit(optimizer, lambda _step: cross_entropy(model(points), labels)))
