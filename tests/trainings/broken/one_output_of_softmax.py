"""A softmax over a single output is always one: the loss is zero from the first step on."""

import launcher_worker as worker
import torch
from torch.nn.functional import cross_entropy
from trainings.shared import blobs, fit, mlp

ENDS_AS = "not-learning"
HARM_AT = 1


def train() -> None:
    model = worker.prepare(mlp(16, 1))
    points, labels = blobs()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    fit(optimizer, lambda _step: cross_entropy(model(points), torch.zeros_like(labels)))
