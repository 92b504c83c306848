"""The optimizer holds the head alone; the body keeps `requires_grad`, collects gradients that nobody zeroes, and stands still."""

import launcher_worker as worker
import torch
from torch.nn.functional import cross_entropy
from trainings.shared import assert_falls, blobs, fit, mlp


def train() -> None:
    model = worker.prepare(mlp(hidden=64))
    points, labels = blobs()
    optimizer = torch.optim.AdamW(model[2].parameters(), lr=2e-2)
    assert_falls(fit(optimizer, lambda _step: cross_entropy(model(points), labels)))
