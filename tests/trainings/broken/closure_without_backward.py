"""LBFGS with a closure that returns the loss without a backward pass: it sees gradients of zero, and stands still."""

import launcher_worker as worker
import torch
from torch.nn.functional import cross_entropy
from trainings.shared import blobs, mlp

STEPS = 30
ENDS_AS = "not-learning"
HARM_AT = 1
PRECISIONS = ("fp32", "bf16")


def train() -> None:
    model = worker.prepare(mlp())
    points, labels = blobs()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=5)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        with worker.autocast():
            return cross_entropy(model(points), labels)

    for step in range(1, STEPS + 1):
        worker.log(step, loss=optimizer.step(closure))
