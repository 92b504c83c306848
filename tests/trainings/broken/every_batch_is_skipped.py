"""The script skips each batch whose loss is not finite, and that is every batch: it makes no step at all."""

import launcher_worker as worker
import torch
from torch.nn.functional import cross_entropy
from trainings.shared import blobs, mlp

STEPS = 6
ENDS_AS = "nan-divergence"
HARM_AT = 1


def train() -> None:
    model = worker.prepare(mlp())
    points, labels = blobs()
    points[0] = float("nan")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(1, STEPS + 1):
        with worker.autocast():
            loss = cross_entropy(model(points), labels)
        if loss.isfinite():
            loss.backward()
            optimizer.step()
        optimizer.zero_grad()
        worker.log(step, loss=loss)
