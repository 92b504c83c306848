"""The sign of the loss is wrong from step 10 on: the squared error is maximised, and grows without end."""

import launcher_worker as worker
import torch
from torch.nn.functional import mse_loss
from trainings.shared import fit, mlp

ENDS_AS = "nan-divergence"
HARM_AT = 10


def train() -> None:
    model = worker.prepare(mlp(8, 1))
    points = torch.randn(64, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss_of(step: int) -> torch.Tensor:
        optimizer.param_groups[0]["maximize"] = step >= HARM_AT
        optimizer.param_groups[0]["lr"] = 1.0 if step >= HARM_AT else 0.05
        return mse_loss(model(points).float(), points.sum(1, keepdim=True))

    fit(optimizer, loss_of)
