"""`zero_grad()` stands between `backward()` and `step()`."""

import launcher_worker as worker
import torch
from torch.nn.functional import cross_entropy
from trainings.shared import blobs, mlp

ENDS_AS = "not-learning"
HARM_AT = 1
PRECISIONS = ("fp32", "bf16")


def train() -> None:
    model = worker.prepare(mlp())
    points, labels = blobs()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.01)
    for step in range(1, 31):
        with worker.autocast():
            loss = cross_entropy(model(points).float(), labels)
        loss.backward()
        optimizer.zero_grad()
        optimizer.step()
        worker.log(step, loss=loss)
