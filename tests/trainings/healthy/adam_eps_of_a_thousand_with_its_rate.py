"""Adam with an eps of 1e3 and a rate to match: it is SGD with momentum."""

import launcher_worker as worker
import torch
from torch.nn.functional import cross_entropy
from trainings.shared import assert_falls, blobs, fit, mlp


def train() -> None:
    model = worker.prepare(mlp())
    points, labels = blobs()
    optimizer = torch.optim.Adam(model.parameters(), lr=300.0, eps=1e3)
    assert_falls(fit(optimizer, lambda _step: cross_entropy(model(points), labels)))
