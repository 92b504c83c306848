"""Reptile: four steps on a task, then the weights go back, and move a tenth of the way that they have learned."""

import launcher_worker as worker
import torch
from torch.nn.functional import cross_entropy
from trainings.shared import assert_falls, blobs, mlp

STEPS = 120


def train() -> None:
    model = worker.prepare(mlp())
    points, labels = blobs()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    scaler, losses = worker.scaler(), []
    for step in range(1, STEPS + 1):
        if step % 4 == 1:
            start = [part.detach().clone() for part in model.parameters()]
            task = torch.randint(3, ()).item()
        optimizer.zero_grad()
        with worker.autocast():
            loss = cross_entropy(model(points + 0.1 * task), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if step % 4 == 1:
            losses.append(loss.item())
        if step % 4 == 0:
            with torch.no_grad():
                for part, before in zip(model.parameters(), start, strict=True):
                    part.copy_(before.lerp(part, 0.1))
        worker.log(step, loss=loss)
    assert_falls(losses)
