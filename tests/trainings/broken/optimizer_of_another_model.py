"""The optimizer was built over a copy of the model, so the model that is trained never moves."""

import copy

import launcher_worker as worker
import torch
from torch.nn.functional import cross_entropy
from trainings.shared import blobs, fit, mlp

ENDS_AS = "not-learning"
HARM_AT = 1


def train() -> None:
    model = worker.prepare(mlp())
    other = copy.deepcopy(model)
    points, labels = blobs()
    optimizer = torch.optim.AdamW(other.parameters(), lr=1e-2)

    def loss_of(_step: int) -> torch.Tensor:
        for part in other.parameters():
            part.grad = torch.ones_like(part)
        return cross_entropy(model(points), labels)

    fit(optimizer, loss_of)
