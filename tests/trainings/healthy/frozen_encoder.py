"""A frozen encoder with BatchNorm left in training mode, under a new head."""

import launcher_worker as worker
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from trainings.shared import assert_falls, blobs, fit, mlp, trainables


def train() -> None:
    encoder = mlp(16, 32, 32, nn.BatchNorm1d(32)).requires_grad_(False)
    model = worker.prepare(nn.Sequential(encoder, nn.Linear(32, 4)))
    points, labels = blobs()
    optimizer = torch.optim.AdamW(trainables(model), lr=3e-2)
    assert_falls(fit(optimizer, lambda _step: cross_entropy(model(points), labels)))
