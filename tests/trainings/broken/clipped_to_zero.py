"""Gradients are clipped to a norm of 0, which somebody took for "no clipping"."""

import launcher_worker as worker
import torch
from torch.nn.functional import cross_entropy
from trainings.shared import blobs, mlp

STEPS = 30
ENDS_AS = "not-learning"
HARM_AT = 1


def train() -> None:
    model = worker.prepare(mlp())
    points, labels = blobs()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    scaler = worker.scaler()
    for step in range(1, STEPS + 1):
        optimizer.zero_grad()
        with worker.autocast():
            loss = cross_entropy(model(points), labels)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.0)
        scaler.step(optimizer)
        scaler.update()
        worker.log(step, loss=loss)
