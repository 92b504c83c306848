"""Nobody calls `optimizer.step()`: forward and backward passes come and go, and the guard sees no step until the end."""

import launcher_worker as worker
import torch
from torch.nn.functional import cross_entropy
from trainings.shared import blobs, mlp

STEPS = 6
ENDS_AS = "not-learning"
HARM_AT = 1


def train() -> None:
    model = worker.prepare(mlp())
    points, labels = blobs()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = worker.scaler()
    for step in range(1, STEPS + 1):
        with worker.autocast():
            loss = cross_entropy(model(points), labels)
        scaler.scale(loss).backward()
        optimizer.zero_grad()
        worker.log(step, loss=loss)
