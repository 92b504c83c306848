"""The last thirty steps have a rate at which no weight in fp32 moves any more."""

import launcher_worker as worker
import torch
from torch.nn.functional import cross_entropy
from trainings.shared import assert_falls, blobs, fit, mlp

STEPS = 60


def train() -> None:
    model = worker.prepare(mlp())
    points, labels = blobs()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 if step < 30 else 1e-9)

    def loss_of(step: int) -> torch.Tensor:
        if step > 1:
            schedule.step()
        return cross_entropy(model(points), labels)

    assert_falls(fit(optimizer, loss_of, STEPS))
