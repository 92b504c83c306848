"""Gradients are zeroed in place, between the forward and the backward pass: they are still there when the model is called."""

import launcher_worker as worker
import torch
from torch.nn.functional import cross_entropy
from trainings.shared import assert_falls, blobs, mlp

STEPS = 40


def train() -> None:
    model = worker.prepare(mlp())
    points, labels = blobs()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler, losses = worker.scaler(), []
    for step in range(1, STEPS + 1):
        some = torch.randperm(64)[:16]
        with worker.autocast():
            loss = cross_entropy(model(points[some]), labels[some])
        optimizer.zero_grad(set_to_none=False)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
        worker.log(step, loss=loss)
    assert_falls(losses)
