"""`optimizer.step()` in place of `scaler.step(optimizer)`: SGD moves by gradients that are 65,536 times too large."""

import launcher_worker as worker
import torch
from torch.nn.functional import cross_entropy
from trainings.shared import blobs, mlp

STEPS = 30
ENDS_AS = "nan-divergence"
HARM_AT = 1
PRECISIONS = ("fp16",)


def train() -> None:
    model = worker.prepare(mlp())
    points, labels = blobs()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = worker.scaler()
    for step in range(1, STEPS + 1):
        optimizer.zero_grad()
        with worker.autocast():
            loss = cross_entropy(model(points), labels)
        scaler.scale(loss).backward()
        optimizer.step()
        worker.log(step, loss=loss)
