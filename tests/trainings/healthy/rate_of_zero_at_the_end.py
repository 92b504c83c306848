"""A schedule that was made for half of the steps: in the second half the rate is exactly zero."""

import launcher_worker as worker
import torch
from torch.nn.functional import cross_entropy
from trainings.shared import assert_falls, blobs, fit, mlp

STEPS = 60


def train() -> None:
    model = worker.prepare(mlp())
    points, labels = blobs()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=STEPS // 2)

    def loss_of(step: int) -> torch.Tensor:
        if step > 1:
            schedule.step()
        return cross_entropy(model(points), labels)

    assert_falls(fit(optimizer, loss_of, STEPS))
