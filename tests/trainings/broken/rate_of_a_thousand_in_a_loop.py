"""SGD with a learning rate of 1e3 over a classifier: after one step its nonlinearities are dead, and all gradients zero."""

import launcher_worker as worker
import torch
from torch.nn.functional import cross_entropy
from trainings.shared import blobs, fit, mlp

ENDS_AS = "nan-divergence"
HARM_AT = 1


def train() -> None:
    model = worker.prepare(mlp())
    points, labels = blobs()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e3)
    fit(optimizer, lambda _step: cross_entropy(model(points), labels))
