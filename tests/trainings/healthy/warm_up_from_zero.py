"""The learning rate begins at exactly zero: the first steps move nothing."""

import launcher_worker as worker
import torch
from torch.nn.functional import cross_entropy
from trainings.shared import assert_falls, blobs, fit, mlp

WARM_UP = 8


def train() -> None:
    model = worker.prepare(mlp())
    points, labels = blobs()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0, step - 4) / WARM_UP)

    def loss_of(step: int) -> torch.Tensor:
        if step > 1:
            schedule.step()
        return cross_entropy(model(points), labels)

    assert_falls(fit(optimizer, loss_of))
