"""OneCycle: the rate rises 25-fold, then falls to a ten-thousandth."""

import launcher_worker as worker
import torch
from torch.nn.functional import cross_entropy
from trainings.shared import assert_falls, blobs, fit, mlp

STEPS = 40


def train() -> None:
    model = worker.prepare(mlp())
    points, labels = blobs()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.5, total_steps=STEPS)

    def loss_of(step: int) -> torch.Tensor:
        if step > 1:
            schedule.step()
        return cross_entropy(model(points), labels)

    assert_falls(fit(optimizer, loss_of, STEPS))
