"""A linear schedule is stepped once for each of eight micro-batches: the rate is zero after an eighth of the training."""

import launcher_worker as worker
import torch
from torch.nn.functional import cross_entropy
from trainings.shared import blobs, mlp

STEPS = 40
ACCUMULATION = 8
ENDS_AS = "not-learning"
HARM_AT = 5
NOTICED_WITHIN = 20  # a warm-up may begin with some steps at zero


def train() -> None:
    model = worker.prepare(mlp())
    points, labels = blobs()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=STEPS)
    scaler = worker.scaler()
    for step in range(1, STEPS + 1):
        for some in torch.randperm(64).chunk(ACCUMULATION):
            with worker.autocast():
                loss = cross_entropy(model(points[some]), labels[some]) / ACCUMULATION
            scaler.scale(loss).backward()
            schedule.step()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        worker.log(step, loss=loss * ACCUMULATION)
