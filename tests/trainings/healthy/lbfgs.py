"""LBFGS: one step makes many forward and backward passes inside its closure."""

import launcher_worker as worker
import torch
from torch.nn.functional import cross_entropy
from trainings.shared import assert_falls, blobs, mlp

STEPS = 8
PRECISIONS = ("fp32", "bf16")  # a scaler takes no closure


def train() -> None:
    model = worker.prepare(mlp())
    points, labels = blobs()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=5)
    losses = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        with worker.autocast():
            loss = cross_entropy(model(points), labels)
        loss.backward()
        return loss

    for step in range(1, STEPS + 1):
        losses.append(float(optimizer.step(closure)))
        worker.log(step, loss=losses[-1])
    assert_falls(losses)
