"""From step 11 on two points are the same: the distance's loss is finite, and its gradient is 0/0."""

import launcher_worker as worker
import torch
from trainings.shared import blobs, fit, mlp

ENDS_AS = "nan-divergence"
HARM_AT = 11


def train() -> None:
    model = worker.prepare(mlp(out=8))
    points, _ = blobs()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def loss_of(step: int) -> torch.Tensor:
        others = points if step >= HARM_AT else points.roll(1, 0)
        return (model(points) - model(others)).float().square().sum(1).sqrt().mean()

    fit(optimizer, loss_of)
