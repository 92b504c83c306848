"""Weight normalisation is added after the optimizer was built, which holds the weights that it has replaced."""

import launcher_worker as worker
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.parametrizations import weight_norm
from trainings.shared import blobs, fit

ENDS_AS = "not-learning"
HARM_AT = 1
PRECISIONS = ("fp32", "bf16")  # a scaler refuses an optimizer without gradients


def train() -> None:
    model = nn.Sequential(nn.Linear(16, 32, bias=False), nn.ReLU(), nn.Linear(32, 4, bias=False))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for layer in (model[0], model[2]):
        weight_norm(layer)
    worker.prepare(model)
    points, labels = blobs()
    fit(optimizer, lambda _step: cross_entropy(model(points), labels))
