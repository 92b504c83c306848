"""A weight decay of 1, as in studies of grokking: the weights shrink while the loss falls."""

import launcher_worker as worker
import torch
from torch.nn.functional import cross_entropy
from trainings.shared import assert_falls, blobs, fit, mlp

STEPS = 60


def train() -> None:
    model = mlp()
    with torch.no_grad():
        for part in model.parameters():
            part.mul_(3)
    worker.prepare(model)
    points, labels = blobs()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=1.0)
    before = model[0].weight.norm().item()
    assert_falls(fit(optimizer, lambda _step: cross_entropy(model(points), labels), STEPS))
    assert model[0].weight.norm() < before
