"""Lookahead: every five steps the fast weights go back half of the way to the slow ones."""

import launcher_worker as worker
import torch
from torch.nn.functional import cross_entropy
from trainings.shared import assert_falls, blobs, fit, mlp


def train() -> None:
    model = worker.prepare(mlp())
    points, labels = blobs()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    slow = [part.detach().clone() for part in model.parameters()]

    def loss_of(step: int) -> torch.Tensor:
        if step % 5 == 1:
            with torch.no_grad():
                for part, behind in zip(model.parameters(), slow, strict=True):
                    part.copy_(behind.lerp_(part, 0.5))
        return cross_entropy(model(points), labels)

    assert_falls(fit(optimizer, loss_of))
