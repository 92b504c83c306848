"""A linear schedule that nobody stops at its end: from step 17 on the rate is negative, and each step climbs the loss."""

import launcher_worker as worker
import torch
from torch.nn.functional import cross_entropy
from trainings.shared import blobs, fit, mlp

STEPS = 40
ENDS_AS = "not-learning"
HARM_AT = 17


def train() -> None:
    model = worker.prepare(mlp())
    points, labels = blobs()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 15)

    def loss_of(step: int) -> torch.Tensor:
        if step > 1:
            schedule.step()
        return cross_entropy(model(points), labels)

    fit(optimizer, loss_of, STEPS)
