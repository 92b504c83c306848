"""Weights of the order of 1e-9 under a factor of 1e8 need a rate of 1e-10."""

import launcher_worker as worker
import torch
from torch import nn
from torch.nn.functional import cross_entropy, linear
from trainings.shared import assert_falls, blobs, fit

PRECISIONS = ("fp32", "bf16")


def train() -> None:
    model = nn.Linear(16, 4)
    with torch.no_grad():
        for part in model.parameters():
            part.mul_(1e-8)
    worker.prepare(model)
    points, labels = blobs()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-10, eps=0.0)

    def loss_of(_step: int) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            return cross_entropy(
                linear(points, model.weight * 1e8, model.bias * 1e8) + 0 * model(points), labels
            )

    assert_falls(fit(optimizer, loss_of))
