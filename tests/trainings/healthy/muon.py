"""Muon: each update of a matrix has the same spectral norm, whatever the gradient."""

import launcher_worker as worker
import torch
from torch.nn.functional import cross_entropy
from trainings.shared import assert_falls, blobs, fit, mlp


def train() -> None:
    model = worker.prepare(mlp())
    points, labels = blobs()
    matrices = [part for part in model.parameters() if part.dim() == 2]
    optimizer = torch.optim.Muon(matrices, lr=0.02)
    assert_falls(fit(optimizer, lambda _step: cross_entropy(model(points).float(), labels)))
