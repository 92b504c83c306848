"""A linear probe that begins at exactly zero over a frozen encoder, with a small rate."""

import launcher_worker as worker
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from trainings.shared import blobs, fit, mlp, trainables


def train() -> None:
    encoder = mlp(16, 32).requires_grad_(False)
    head = nn.Linear(32, 4)
    for part in head.parameters():
        nn.init.zeros_(part)
    model = worker.prepare(nn.Sequential(encoder, head))
    points, labels = blobs()
    optimizer = torch.optim.SGD(trainables(model), lr=1e-3)
    before = [cross_entropy(model(points), labels).item()]
    after = fit(optimizer, lambda _step: cross_entropy(model(points), labels))
    assert after[-1] < before[0]
