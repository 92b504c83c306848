"""Nine of ten activations are dropped: the loss is noisy, and some steps see few weights."""

import launcher_worker as worker
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from trainings.shared import assert_falls, blobs, fit, mlp

STEPS = 60


def train() -> None:
    model = worker.prepare(mlp(16, 4, 64, nn.Dropout(0.9)))
    points, labels = blobs()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    assert_falls(fit(optimizer, lambda _step: cross_entropy(model(points), labels), STEPS))
