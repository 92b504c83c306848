"""Eight micro-batches a step: seven of eight backward passes move nothing."""

import launcher_worker as worker
import torch
from torch.nn.functional import cross_entropy
from trainings.shared import assert_falls, blobs, mlp

STEPS = 20
ACCUMULATION = 8


def train() -> None:
    model = worker.prepare(mlp())
    points, labels = blobs()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    scaler, losses = worker.scaler(), []
    for step in range(1, STEPS + 1):
        total = 0.0
        for some in torch.randperm(64).chunk(ACCUMULATION):
            with worker.autocast():
                loss = cross_entropy(model(points[some]), labels[some]) / ACCUMULATION
            scaler.scale(loss).backward()
            total += loss.item()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(total)
        worker.log(step, loss=total)
    assert_falls(losses)
