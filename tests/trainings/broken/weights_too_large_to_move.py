"""The weights are of the order of 1e9, where fp32 has steps of 64: no update is large enough to count."""

import launcher_worker as worker
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from trainings.shared import blobs, fit

ENDS_AS = "not-learning"
HARM_AT = 1
PRECISIONS = ("fp32", "bf16")


def train() -> None:
    model = nn.Linear(16, 4, bias=False)
    with torch.no_grad():
        model.weight.fill_(1e9)
    worker.prepare(model)
    points, labels = blobs()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    fit(optimizer, lambda _step: cross_entropy(model(points) / 1e9, labels))
