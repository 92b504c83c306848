"""Each step makes a new optimizer, whose rate is so small that every update rounds away."""

import launcher_worker as worker
import torch
from torch.nn.functional import cross_entropy
from trainings.shared import blobs, fit_scaled, mlp

STEPS = 30
ENDS_AS = "not-learning"
HARM_AT = 1


def train() -> None:
    model = worker.prepare(mlp())
    points, labels = blobs()
    for step in range(1, STEPS + 1):
        with worker.autocast():
            loss = cross_entropy(model(points), labels)
        fit_scaled(torch.optim.SGD(model.parameters(), lr=1e-14), loss)
        worker.log(step, loss=loss)
