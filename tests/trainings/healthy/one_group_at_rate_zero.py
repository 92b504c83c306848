"""Discriminative rates: the body's rate is zero for the first half, and the head is trained from the first step on."""

import launcher_worker as worker
import torch
from torch.nn.functional import cross_entropy
from trainings.shared import assert_falls, blobs, fit, mlp


def train() -> None:
    model = worker.prepare(mlp())
    points, labels = blobs()
    groups = [
        {"params": model[0].parameters(), "lr": 0.0},
        {"params": model[2].parameters(), "lr": 1e-2},
    ]
    optimizer = torch.optim.AdamW(groups)

    def loss_of(step: int) -> torch.Tensor:
        optimizer.param_groups[0]["lr"] = 1e-2 if step > 15 else 0.0
        return cross_entropy(model(points), labels)

    assert_falls(fit(optimizer, loss_of))
