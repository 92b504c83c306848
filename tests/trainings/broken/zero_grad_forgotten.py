"""Nobody calls `zero_grad()`: each step applies the sum of all gradients since the first one, and the weights swing."""

import launcher_worker as worker
import torch
from torch.nn.functional import mse_loss

STEPS = 60
ENDS_AS = "not-learning"
HARM_AT = 2
PRECISIONS = ("fp32", "bf16")  # under a scaler the old gradients are divided by its scale, and vanish


def train() -> None:
    model = worker.prepare(torch.nn.Linear(8, 1))
    points = torch.randn(64, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
    for step in range(1, STEPS + 1):
        some = points[torch.randperm(64)[:16]]
        with worker.autocast():
            loss = mse_loss(model(some).float(), some.sum(1, keepdim=True))
        loss.backward()
        optimizer.step()
        worker.log(step, loss=loss)
